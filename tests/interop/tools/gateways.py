"""What via-gateway and protected-gateway.py share: gateways as processes, one or several as in production. Standard library only."""
import atexit, base64, ctypes, glob, json, os, pathlib, re, shutil, signal, socket, subprocess, sys, tempfile, threading, time, urllib.error, urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[3]
NOBODY = 65534


def binary():
    if os.environ.get("DRAWBRIDGE"): return os.path.abspath(os.environ["DRAWBRIDGE"])
    found = [p for p in (ROOT / "target" / k / "drawbridge" for k in ("release", "debug")) if p.exists()]
    if not found: sys.exit("no gateway: cargo build --release, or set DRAWBRIDGE to the binary")
    return str(max(found, key=lambda p: p.stat().st_mtime))


def die_with_parent(signal=signal.SIGTERM):
    ctypes.CDLL(None).prctl(1, int(signal))


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def sign_in_token(database, user="alice", scopes="login"):
    """Makes a token of a user, and the user."""
    r = subprocess.run([binary(), "token", "create", "--database", database, "--kind", "personal", "--owner", user, "--create-owner", "--name", "of a test",
                        "--scopes", scopes.replace(" ", ","), "--expires-in", "1d"], capture_output=True, text=True)
    if r.returncode: sys.exit(f"no token: {r.stderr}")
    return r.stdout.strip()


def answers(url):
    try:
        return urllib.request.urlopen(url, timeout=2).status
    except urllib.error.HTTPError as e:
        return e.code
    except OSError:
        return 0


def until(what, condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end: sys.exit(f"{what}: not within {seconds} s")
        time.sleep(.05)


def program(name, places=()):
    found = shutil.which(name) or next((p for p in places if os.path.exists(p)), None)
    return found or sys.exit(f"{name} is needed: ./test.sh installs it (Debian: redis-server, haproxy, postgresql)")


class Fleet:
    """Several gateways with one Redis, behind HAProxy with deploy/haproxy.cfg: round robin, no stickiness.

    Each has `settings` and what it needs besides: shared state, keys, an address, files of its own. With `database` they
    share a PostgreSQL. With `at`, the balancer listens there. One that was killed is started again by `revive`.
    """

    def __init__(self, count, settings, tmp, log, arguments=(), database=False, at=None):
        self.settings, self.tmp, self.log, self.arguments = settings, tmp, log, arguments
        self.ports = {name: [free_port() for _ in range(count)] for name in ("public", "probes")}
        self.gateways, self.folder, self.database, self.others = [], None, None, []
        if database: self.others.append(self.postgres())
        port = free_port()
        self.others.append(self.run(program("redis-server"), "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", tmp))
        self.shared = {"redis": {"url": f"redis://127.0.0.1:{port}"}, "seal": {"keys": [{"id": "k1", "key": base64.b64encode(bytes(range(32))).decode()}]}}
        if database: self.shared["database"] = {"url": self.database}
        # The first one alone makes the tables.
        for n in range(count):
            self.gateways.append(self.gateway(n))
            if database and not n: until("the first gateway", lambda: self.ready(0))
        until("the gateways", lambda: all(self.ready(n) for n in range(count)))
        self.bind = at or free_port()
        self.url = f"http://127.0.0.1:{self.bind}"
        addresses = {f"DRAWBRIDGE_SERVER_{n + 1}": f"127.0.0.1:{port}" for n, port in enumerate(self.ports["public"])}
        addresses |= {f"DRAWBRIDGE_PROBES_{n + 1}": str(port) for n, port in enumerate(self.ports["probes"])}
        # A line for each request, with the name of the instance that it went to.
        self.steps = os.path.join(tmp, "balancer.log")
        with open(self.steps, "w") as steps:
            self.balancer = subprocess.Popen([program("haproxy", ["/usr/sbin/haproxy"]), "-db", "-f", str(ROOT / "deploy" / "haproxy.cfg")], cwd=tmp, stdin=subprocess.DEVNULL, stdout=steps, stderr=log, preexec_fn=die_with_parent,
                                             env={**os.environ, **addresses, "DRAWBRIDGE_BIND": f"127.0.0.1:{self.bind}", "DRAWBRIDGE_MAXCONN": "4000"})
        until("HAProxy", lambda: answers(self.url + "/mcp") not in (0, 503))

    def run(self, *command):
        return subprocess.Popen(command, cwd=self.tmp, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, preexec_fn=die_with_parent)

    def gateway(self, n):
        s = {**self.settings, **self.shared, "instance_id": f"gateway-{n + 1}", "data_dir": os.path.join(self.tmp, f"data-{n}")}
        s["public"] = {**s.get("public", {}), "listen": f"127.0.0.1:{self.ports['public'][n]}"}
        s["admin"] = {**s.get("admin", {}), "listen": "127.0.0.1:0", "probes": f"127.0.0.1:{self.ports['probes'][n]}"}
        own = os.path.join(self.tmp, f"gateway-{n}.yaml")
        with open(own, "w") as file: json.dump(s, file)      # JSON is YAML
        return self.run(binary(), "serve", "--config", own, *self.arguments)

    def ready(self, n): return answers(f"http://127.0.0.1:{self.ports['probes'][n]}/readyz") == 200

    def revive(self, over):
        for n, p in enumerate(self.gateways):
            if p.poll() is None: continue
            self.gateways[n] = self.gateway(n)
            until("the gateway that was killed", lambda: self.ready(n) or over.is_set())

    def postgres(self):
        """A PostgreSQL in a folder that goes with it; it refuses to run as root."""
        newest = sorted(glob.glob("/usr/lib/postgresql/*/bin"), key=lambda p: int(re.sub(r"\D", "", p) or 0), reverse=True)
        root = os.geteuid() == 0
        self.folder = tempfile.mkdtemp(prefix="interop-postgres-")
        atexit.register(shutil.rmtree, self.folder, ignore_errors=True)
        if root: os.chown(self.folder, NOBODY, NOBODY)

        def other():
            if root: os.setgroups([]); os.setgid(NOBODY); os.setuid(NOBODY)
            die_with_parent(signal.SIGQUIT)                 # at once; not before the user has changed, which would undo it

        data, port = os.path.join(self.folder, "data"), free_port()
        made = subprocess.run([program("initdb", [f"{p}/initdb" for p in newest]), "-D", data, "-U", "postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"],
                              cwd=self.folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, preexec_fn=other)
        if made.returncode: sys.exit(f"initdb: {made.stderr}")
        settings = [f"--{s}" for s in ("listen_addresses=127.0.0.1", "fsync=off", "max_connections=200", "dynamic_shared_memory_type=mmap")]
        p = subprocess.Popen([program("postgres", [f"{p}/postgres" for p in newest]), "-D", data, "-p", str(port), "-k", self.folder, *settings],
                             cwd=self.folder, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, preexec_fn=other)
        pid = pathlib.Path(data, "postmaster.pid")
        until("PostgreSQL", lambda: p.poll() is not None or (pid.exists() and "ready" in pid.read_text()))
        if p.poll() is not None: sys.exit("PostgreSQL has ended")
        self.database = f"postgres://postgres@127.0.0.1:{port}/postgres"
        return p

    def end(self):
        for p in (self.balancer, *self.gateways): p.send_signal(signal.SIGTERM)
        for p in (self.balancer, *self.gateways):
            try: p.wait(20)
            except subprocess.TimeoutExpired: p.kill(); p.wait()
        for p in self.others: p.send_signal(signal.SIGQUIT if self.folder and p is self.others[0] else signal.SIGTERM); p.wait()


def told_to_end():
    """An event that a signal sets."""
    over = threading.Event()
    for s in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP): signal.signal(s, lambda *_: over.set())
    return over
