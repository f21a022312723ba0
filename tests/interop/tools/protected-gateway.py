#!/usr/bin/env python3
"""Starts a gateway that asks callers who they are (`auth.mode: embedded`), with a user, on loopback. Standard library only.

protected-gateway.py [--auth JSON] [--public JSON] [--scopes login] [--dir DIR] [--port N] NAME=URL ...
Prints one JSON line once it is ready: {"url": endpoint of the first backend or /mcp, "public": ..., "admin": ..., "pid": ..., "token": one
of its user with these scopes, "data": ...}. --auth and --public are merged into those sections. DRAWBRIDGE names the binary;
LOG=FILE keeps its output. With --dir DIR and --port N of an earlier one it is that one, started again.
The gateway ends with this program, on a signal or when its parent dies, and this program with the gateway.
"""
import argparse, ctypes, json, os, pathlib, re, shutil, signal, socket, subprocess, sys, tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]


def binary():
    if os.environ.get("DRAWBRIDGE"): return os.path.abspath(os.environ["DRAWBRIDGE"])
    found = [p for p in (ROOT / "target" / k / "drawbridge" for k in ("release", "debug")) if p.exists()]
    if not found: sys.exit("no gateway: cargo build --release, or set DRAWBRIDGE to the binary")
    return str(max(found, key=lambda p: p.stat().st_mtime))


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def die_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def main():
    parent = os.getppid()
    die_with_parent()
    if os.getppid() != parent: return
    a = argparse.ArgumentParser()
    a.add_argument("--auth", type=json.loads, default={}); a.add_argument("--public", type=json.loads, default={})
    a.add_argument("--scopes", default="login"); a.add_argument("--dir"); a.add_argument("--port", type=int); a.add_argument("backends", nargs="+")
    o = a.parse_args()
    tmp = o.dir or tempfile.mkdtemp(prefix="gateway-")
    os.makedirs(tmp, exist_ok=True)
    port = o.port or free_port()                            # its own URL has to be known before it listens
    data, config = os.path.join(tmp, "data"), os.path.join(tmp, "drawbridge.yaml")
    with open(config, "w") as file:                         # JSON is YAML
        json.dump({"public": {"listen": f"127.0.0.1:{port}", "url": f"http://localhost:{port}", **o.public}, "admin": {"listen": "127.0.0.1:0"}, "data_dir": data,
                   "auth": {"mode": "embedded", **o.auth}, "backends": {name: {"url": url} for name, url in (b.split("=", 1) for b in o.backends)}}, file)
    p = subprocess.Popen([binary(), "serve", "--config", config], cwd=tmp, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, preexec_fn=die_with_parent)
    over = []

    def end(*_):                                            # once: a second signal would cut the drain short
        if not over: over.append(1); p.terminate(); signal.alarm(45)

    for s in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP): signal.signal(s, end)
    signal.signal(signal.SIGALRM, lambda *_: (print("the gateway did not end in 45 s", file=sys.stderr), p.kill()))
    log = open(os.environ.get("LOG") or os.path.join(tmp, "log"), "a")
    at, lines, ready = {}, [], False
    for line in p.stdout:                                   # to the end: the pipe must not fill
        log.write(line); log.flush()
        if ready: continue
        lines.append(line)
        if m := re.match(r"listening (public|admin)=(\S+)", re.sub(r"\x1b\[[0-9;]*m", "", line)): at[m[1]] = m[2]
        if len(at) == 2:
            ready = True
            token = subprocess.run([sys.executable, HERE / "sign-in-token.py", os.path.join(data, "drawbridge.db"), "--scopes", o.scopes], capture_output=True, text=True, check=True).stdout.strip()
            print(json.dumps({"url": f"http://localhost:{port}/mcp", "public": f"http://localhost:{port}", "admin": at["admin"], "pid": p.pid, "token": token, "data": data}), flush=True)
    code = p.wait()
    if not o.dir: shutil.rmtree(tmp, ignore_errors=True)
    if not ready:
        sys.stderr.write("the gateway ended before it listened:\n" + "".join(lines[-20:])); sys.exit(code or 1)
    sys.exit(max(code, 0))


main()
