#!/usr/bin/env python3
"""The files in deploy/ and docker-compose.yml, as far as they can be checked without Docker, Kubernetes, Prometheus or Grafana.

Called by deploy/check.sh, which installs what this needs. With DRAWBRIDGE (a binary) the configurations in the files are also
given to `drawbridge check`.
"""
import base64, copy, json, os, pathlib, re, subprocess, sys, tempfile

import jsonschema, kubernetes_validate, yaml

DEPLOY = pathlib.Path(__file__).resolve().parents[1]
ROOT, CHART = DEPLOY.parent, DEPLOY / "helm/drawbridge"
KUBERNETES = ["1.30", "1.37"]  # the oldest that the chart is for, and the newest that there are schemas of

# Names and labels of the metrics. Once docs/metrics.md is there, the names are those that stand in it.
METRICS = {
    "drawbridge_requests_total": "endpoint method era outcome", "drawbridge_request_duration_seconds": "endpoint method era",
    "drawbridge_http_responses_total": "status", "drawbridge_in_flight_requests": "", "drawbridge_open_streams": "kind",
    "drawbridge_sessions": "", "drawbridge_parked_calls": "", "drawbridge_backend_requests_total": "backend outcome",
    "drawbridge_backend_request_duration_seconds": "backend", "drawbridge_backend_up": "backend", "drawbridge_backend_processes": "backend",
    "drawbridge_backend_process_starts_total": "backend", "drawbridge_redis_up": "", "drawbridge_redis_command_duration_seconds": "port",
    "drawbridge_redis_errors_total": "port", "drawbridge_bus_messages_total": "direction", "drawbridge_event_log_bytes": "",
    "drawbridge_open_connections": "", "drawbridge_connections_refused_total": "", "drawbridge_credentials_total": "result",
    "drawbridge_limited_total": "limit", "drawbridge_limits_degraded_total": "", "drawbridge_audit_entries_total": "",
    "drawbridge_audit_lost_total": "", "drawbridge_audit_queue": "", "drawbridge_audit_broken_chains_total": "",
    "drawbridge_database_up": "", "drawbridge_revocations_current": "", "drawbridge_backend_credential_failures_total": "backend",
    "drawbridge_backend_client_certificate_expiry_timestamp_seconds": "backend", "drawbridge_config_reloads_total": "result", "drawbridge_config_last_reload_success_timestamp_seconds": "", "drawbridge_build_info": "version",
}
OF_PROMETHEUS = {"up", "process_cpu_seconds_total", "process_resident_memory_bytes", "process_virtual_memory_bytes", "process_open_fds",
                 "process_max_fds", "process_start_time_seconds", "process_threads", "ALERTS"}
TARGET_LABELS = {"instance", "job", "le", "alertname", "alertstate"}


class Once(yaml.SafeLoader):
    """A key that is there twice is a fault."""

    def construct_mapping(self, node, deep=False):
        keys = [key.value for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
        twice = {key for key in keys if keys.count(key) > 1}
        assert not twice, f"{node.start_mark}: twice: {twice}"
        return super().construct_mapping(node, deep)


def load(path): return yaml.load(pathlib.Path(path).read_text(), Once)


def run(*command, fails=None, **env):
    """Runs a command that succeeds, or fails with a message that has `fails` in it; returns what it wrote."""
    done = subprocess.run([str(c) for c in command], env={**os.environ, **env}, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    said = done.stdout + done.stderr
    if fails is None: assert done.returncode == 0, f"{command[0]} exited with {done.returncode}:\n{said}"
    else: assert done.returncode != 0 and fails in said, f"{command[0]} exited with {done.returncode}, without saying {fails!r}:\n{said}"
    return done.stdout


def checked(config):
    """A configuration has the form that the gateway's schema says and, if there is a gateway, passes its check."""
    schema = json.loads((ROOT / "schema/drawbridge.schema.json").read_text())
    jsonschema.validate(yaml.load(config, Once), schema)
    if not os.environ.get("DRAWBRIDGE"): return
    with tempfile.TemporaryDirectory() as folder:
        key = base64.b64encode(os.urandom(32)).decode()
        for id in ("k1", "k2"): pathlib.Path(folder, id).write_text(key)
        file = pathlib.Path(folder, "drawbridge.yaml"); file.write_text(config.replace("/etc/drawbridge-seal/", folder + "/"))
        run(os.environ["DRAWBRIDGE"], "check", "--config", file, DRAWBRIDGE_SEAL_K1=key, DRAWBRIDGE_ADMIN_TOKEN=os.urandom(32).hex(), DATABASE_URL="postgres://d:p@db/d", TICKETS_URL="http://tickets/mcp", TICKETS_AUTHORIZATION="x")


def seconds(text):
    units = {"s": 1, "m": 60, "h": 3600}
    assert re.fullmatch(r"(\d+[smh])+", text), text
    return sum(int(n) * units[u] for n, u in re.findall(r"(\d+)([smh])", text))


# --- files ---

def yaml_and_json_can_be_read():
    files = [ROOT / "docker-compose.yml", *DEPLOY.rglob("*.yaml"), *DEPLOY.rglob("*.json")]
    files = [f for f in files if f.parent != CHART / "templates"]
    for file in files: load(file) if file.suffix != ".json" else json.loads(file.read_text())
    assert len(files) > 8, files


def the_readme_names_only_files_that_exist():
    page = (DEPLOY / "README.md").read_text()
    for link in re.findall(r"\]\(([^)#]+)", page):
        assert "://" in link or (DEPLOY / link).exists(), link
    for name in re.findall(r"`((?:deploy|docs|benches|tests|schema)/[\w./-]+)`", page):
        assert (ROOT / name).exists(), name


# --- images and compose ---

def the_dockerfile_is_well_formed():
    run("hadolint", DEPLOY / "Dockerfile")
    stages = re.split(r"(?m)^FROM ", (DEPLOY / "Dockerfile").read_text())[2:]
    assert {re.search(r"AS (\S+)", s)[1] for s in stages} == {"drawbridge", "drawbridge-stdio"}
    for stage in stages: assert "\nUSER 65532:65532\n" in stage, stage


COMPOSE_SECRETS = {"DRAWBRIDGE_SEAL_K1": "openssl rand -base64 32", "DRAWBRIDGE_ADMIN_TOKEN": "openssl rand -hex 32", "POSTGRES_PASSWORD": "openssl rand -hex 16"}


def compose(*args, fails=None, **env): return run("docker-compose", "-f", ROOT / "docker-compose.yml", "--env-file", "/dev/null", *args, fails=fails, **{**dict.fromkeys(COMPOSE_SECRETS, "x"), **env})


def compose_reads_its_file():
    services = json.loads(compose("config", "--format", "json"))["services"]
    for name, advice in COMPOSE_SECRETS.items(): compose("config", fails=advice, **{name: ""})
    config = load(DEPLOY / "compose/drawbridge.yaml")
    for name, service in services.items():
        assert service["read_only"] and service["cap_drop"] == ["ALL"], name
        for port in service.get("ports", []): assert port.get("host_ip") == "127.0.0.1", f"{name} is open to others"
        for volume in service.get("volumes", []): assert volume["type"] == "volume" or pathlib.Path(volume["source"]).is_file(), volume
    # HAProxy is told of the gateways with the variables that its file has, at the ports that theirs has.
    told, known = services["haproxy"]["environment"], set(re.findall(r"\$\{(\w+)", (DEPLOY / "haproxy.cfg").read_text()))
    assert set(told) <= known, set(told) - known
    gateways = [name for name in services if name.startswith("gateway-")]
    assert {told[f"DRAWBRIDGE_SERVER_{n}"] for n, _ in enumerate(gateways, 1)} == {g + ":" + config["public"]["listen"].split(":")[1] for g in gateways}
    assert {told[f"DRAWBRIDGE_PROBES_{n}"] for n, _ in enumerate(gateways, 1)} == {config["admin"]["probes"].split(":")[1]}
    for name in gateways:
        assert seconds(services[name]["stop_grace_period"]) > seconds(config["drain"]["deadline"]) + 30, name
        assert services[name]["environment"]["DRAWBRIDGE_INSTANCE_ID"] == name
    checked((DEPLOY / "compose/drawbridge.yaml").read_text())


# --- balancers ---

def the_balancers_read_their_files():
    env = {"DRAWBRIDGE_BIND": "127.0.0.1:8480"}
    for n in (1, 2, 3):
        env |= {f"DRAWBRIDGE_SERVER_{n}": f"127.0.0.{n}:8480", f"DRAWBRIDGE_PROBES_{n}": "9491"}
        run("haproxy", "-c", "-f", DEPLOY / "haproxy.cfg", **env)
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder, "nginx.conf"); file.write_text((DEPLOY / "nginx.conf").read_text().replace("/tmp/drawbridge-nginx", folder + "/nginx"))
        run("nginx", "-t", "-c", file)


def nothing_sticks_and_nothing_is_sent_twice():
    plain = lambda name: re.sub(r"(?m)#.*$", "", (DEPLOY / name).read_text())
    haproxy, nginx = plain("haproxy.cfg"), plain("nginx.conf")
    assert re.findall(r"retry-on (.*)", haproxy) == ["conn-failure"]
    assert not re.search(r"cookie|stick|balance (source|hdr|uri|url_param)|hash-type|on-marked-down|http-buffer-request", haproxy)
    assert re.findall(r"proxy_next_upstream (.*);", nginx) == ["error"]
    assert not re.search(r"ip_hash|sticky|\bhash\b|non_idempotent", nginx)


# --- chart ---

def helm(verb, *values, fails=None, **sets):
    # Hosts have to know where to log in; the single one asks nobody.
    if "single" not in values: sets = {"config__public__url": "https://mcp.example.com", **sets}
    args = [f"--set-json={key.replace('__', '.')}={json.dumps(value)}" for key, value in sets.items()]
    command = ["helm", "template", "dev", CHART, "--kube-version", KUBERNETES[0]] if verb == "template" else ["helm", "lint", "--strict", "--quiet", CHART]
    return run(*command, *[f"--values={CHART}/ci/{v}-values.yaml" for v in values], *args, fails=fails)


def rendered(*values, **sets):
    manifests = [m for m in yaml.load_all(helm("template", *values, **sets), Once) if m]
    return {(m["kind"], m["metadata"]["name"]): m for m in manifests}


def the_chart_is_well_formed():
    for values in ((), ("everything",), ("single",)): helm("lint", *values)
    version = re.search(r'(?m)^version = "(.*)"', (ROOT / "Cargo.toml").read_text())[1]
    assert load(CHART / "Chart.yaml")["appVersion"] == version
    def same(values, schema, path=""):
        """Schema and values have the same keys, but for mappings that are the user's."""
        if "properties" not in schema: return
        assert set(values) == set(schema["properties"]) - {"global"}, f"{path}: {set(values) ^ set(schema['properties'])}"
        for key, value in values.items():
            if isinstance(value, dict): same(value, schema["properties"][key], f"{path}.{key}")
    same(load(CHART / "values.yaml"), json.loads((CHART / "values.schema.json").read_text()))


def what_the_chart_renders_is_valid():
    for values in ((), ("everything",), ("single",)):
        manifests = rendered(*values)
        for (kind, name), manifest in manifests.items():
            assert len(name) <= 63
            if kind == "ServiceMonitor": continue  # of the Prometheus operator, not of Kubernetes
            for version in KUBERNETES: kubernetes_validate.validate(copy.deepcopy(manifest), version, strict=True)
        deployment = next(m for (kind, _), m in manifests.items() if kind == "Deployment")
        pod, labels = deployment["spec"]["template"]["spec"], deployment["spec"]["template"]["metadata"]["labels"]
        ports = {p["name"] for p in pod["containers"][0]["ports"]}
        for (kind, name), m in manifests.items():
            spec = m.get("spec", {})
            selector = {"Service": lambda: spec["selector"], "NetworkPolicy": lambda: spec["podSelector"]["matchLabels"]}.get(
                kind, lambda: spec.get("selector", {}).get("matchLabels", {}))()
            if kind == "ServiceMonitor": assert any(k == "Service" and selector.items() <= s["metadata"]["labels"].items() for (k, _), s in manifests.items())
            else: assert selector.items() <= labels.items(), (kind, name)
            if kind == "Service": assert all(p["targetPort"] in ports for p in spec["ports"])
            if kind == "HorizontalPodAutoscaler": assert ("Deployment", spec["scaleTargetRef"]["name"]) in manifests
            if kind == "Ingress":
                backend = spec["rules"][0]["http"]["paths"][0]["backend"]["service"]
                assert any(p["name"] == backend["port"]["name"] for p in manifests["Service", backend["name"]]["spec"]["ports"])
        # The profile "restricted" of the pod security standards, and a root that can't be written to.
        container = pod["containers"][0]
        assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container["securityContext"] == {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
        assert pod["automountServiceAccountToken"] is False
        mounted = {m["name"] for m in container["volumeMounts"]}
        assert mounted == {v["name"] for v in pod["volumes"]}, mounted
        # A drain fits into what Kubernetes waits.
        config = next(m for (kind, _), m in manifests.items() if kind == "ConfigMap")["data"]["drawbridge.yaml"]
        wait = container.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
        assert pod["terminationGracePeriodSeconds"] >= wait + seconds(yaml.load(config, Once)["drain"]["deadline"]) + 30
        checked(config)


def a_changed_configuration_starts_new_pods():
    def checksum(**sets):
        return next(m for (k, _), m in rendered(**sets).items() if k == "Deployment")["spec"]["template"]["metadata"]["annotations"]["checksum/config"]
    assert checksum() == checksum(replicaCount=3)
    assert checksum() != checksum(config__log__level="debug") != checksum(drainSeconds=31)


def the_chart_refuses_what_can_not_work():
    for fails, sets in [
        ("several instances need Redis", {"redis__enabled": False}),
        ("several instances need Redis", {"redis__enabled": False, "replicaCount": 1, "autoscaling__enabled": True}),
        ("set database.enabled", {"database__enabled": False}),
        ("set config.public.url", {"config__public__url": ""}),
        ("config.database: the chart sets this itself", {"config__database": {"url": "x"}}),
        ("something to go by", {"autoscaling__enabled": True, "autoscaling__cpu__enabled": False}),
        ("config.drain.deadline: the chart sets this itself", {"config__drain": {"deadline": "5s"}}),
        ("config.seal: the chart sets this itself", {"config__seal": {"keys": []}}),
        ("config.admin.probes: the chart sets this itself", {"config__admin": {"probes": "0.0.0.0:1"}}),
        ("replicas", {"replicas": 3}),
        ("drainSeconds", {"drainSeconds": "30s"}),
        ("seal", {"seal__keys": []}),
        ("antiAffinity", {"antiAffinity": "always"}),
    ]: helm("template", fails=fails, **sets)


# --- dashboard and alerts ---

def known_metrics():
    page = ROOT / "docs/metrics.md"
    if not page.exists(): return set(METRICS)
    return set(re.findall(r"\bdrawbridge_[a-z0-9_]+", page.read_text()))


def expressions():
    """Every query of the alerts and of the dashboard, with where it stands; Grafana's variables replaced."""
    for group in load(DEPLOY / "prometheus/alerts.yaml")["groups"]:
        for rule in group["rules"]: yield rule["alert"], rule["expr"]
    dashboard = json.loads((DEPLOY / "grafana/drawbridge.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []): yield panel["title"], target["expr"].replace("$__rate_interval", "5m").replace('"$', '".*$')
    for variable in dashboard["templating"]["list"]:
        for metric, label in re.findall(r"label_values\((\w+), (\w+)\)", variable.get("definition", "")): yield variable["name"], f"sum by ({label}) ({metric})"
    for annotation in dashboard["annotations"]["list"]: yield annotation["name"], annotation["expr"]


def every_metric_and_label_is_known():
    known, seen = known_metrics(), set()
    for where, expr in expressions():
        labels = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"", expr))
        for group in re.findall(r"\b(?:by|on|ignoring|without) \(([^)]*)\)", expr): labels |= {l.strip() for l in group.split(",")}
        bare = re.sub(r'\{[^}]*\}|\[[^]]*\]|"[^"]*"|\b(?:by|on|ignoring|without) \([^)]*\)', "", expr)
        names = {n for n in re.findall(r"[a-zA-Z_]\w*(?!\w|\s*\()", bare) if n not in {"and", "or", "unless"}}
        assert names, f"{where}: no metric in {expr}"
        allowed = set(TARGET_LABELS)
        for name in names:
            base = re.sub(r"_(bucket|count|sum)$", "", name) if name not in known else name
            assert base in known or name in OF_PROMETHEUS, f"{where}: {name} is no metric of the gateway"
            seen.add(base); allowed |= set(METRICS.get(base, "").split())
            if base not in METRICS and base not in OF_PROMETHEUS: allowed |= labels  # one that this file doesn't know yet
        assert labels <= allowed, f"{where}: {labels - allowed}"
    assert len(seen) > 20, seen


def prometheus_reads_the_rules_and_they_fire_when_they_should():
    rules = DEPLOY / "prometheus/alerts.yaml"
    run("promtool", "check", "rules", rules)
    run("promtool", "test", "rules", DEPLOY / "prometheus/alerts_test.yaml")
    for group in load(rules)["groups"]:
        for rule in group["rules"]:
            assert set(rule["annotations"]) == {"summary", "action"} and rule["labels"]["severity"] in {"page", "ticket"}, rule["alert"]
            assert rule["alert"] in (DEPLOY / "prometheus/alerts_test.yaml").read_text(), f"{rule['alert']} has no test"


def grafana_could_draw_the_dashboard():
    dashboard = json.loads((DEPLOY / "grafana/drawbridge.json").read_text())
    panels = dashboard["panels"]
    assert len({p["id"] for p in panels}) == len(panels)
    taken = {}
    for panel in panels:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24, panel["title"]
        for x in range(at["x"], at["x"] + at["w"]):
            for y in range(at["y"], at["y"] + at["h"]):
                assert (x, y) not in taken, f"{panel['title']} lies over {taken[x, y]}"
                taken[x, y] = panel["title"]
        for target in panel.get("targets", []): assert target["datasource"]["uid"] == "${datasource}", panel["title"]
    with tempfile.TemporaryDirectory() as folder:  # promtool reads queries in rules only
        file = pathlib.Path(folder, "rules.yaml")
        file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": [{"record": f"q:{n}", "expr": e} for n, (_, e) in enumerate(expressions())]}]}))
        run("promtool", "check", "rules", "--lint=none", file)


TESTS = [yaml_and_json_can_be_read, the_readme_names_only_files_that_exist, the_dockerfile_is_well_formed, compose_reads_its_file,
         the_balancers_read_their_files, nothing_sticks_and_nothing_is_sent_twice, the_chart_is_well_formed, what_the_chart_renders_is_valid,
         a_changed_configuration_starts_new_pods, the_chart_refuses_what_can_not_work, every_metric_and_label_is_known,
         prometheus_reads_the_rules_and_they_fire_when_they_should, grafana_could_draw_the_dashboard]

failed = 0
for test in TESTS:
    fault = None
    try: test()
    except Exception as e: fault = f"{type(e).__name__}: {e}"
    print(f"{'FAILED' if fault else 'ok'} {test.__name__.replace('_', ' ')}" + (f"\n    {fault}" if fault else ""), flush=True)
    failed += bool(fault)
print(f"{len(TESTS) - failed} passed, {failed} failed")
sys.exit(1 if failed else 0)
