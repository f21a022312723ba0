#!/usr/bin/env python3
"""Starts a gateway that asks callers who they are (`auth.mode: embedded`), with a user, on loopback. Standard library only.

protected-gateway.py [--auth JSON] [--public JSON] [--scopes login] [--user alice ...] [--dir DIR] [--port N] [--instances N] NAME=URL|JSON ...
Prints one JSON line once it is ready: {"url": its /mcp, "public": ..., "admin": ..., "pid": ..., "token": one of its user with these
scopes, "tokens": those of its users by name, "database": URL}. --auth and --public are merged into those sections; a backend is an address, or a
section as in the configuration. DRAWBRIDGE names the binary; LOG=FILE keeps its output. With --dir DIR and --port N of an earlier one it is that one, started again.
With --instances N there are so many, with one PostgreSQL and one Redis, behind HAProxy (round robin). Then the line has no pid, but
"steps", the balancer's log with the name of the instance that each request went to, and "pids", a file with the process of each by
that name; one that was killed is started again.
The gateway ends with this program, on a signal or when its parent dies, and this program with the gateway.
"""
import argparse, json, os, re, shutil, signal, subprocess, sys, tempfile

sys.dont_write_bytecode = True
from gateways import Fleet, binary, die_with_parent, free_port, sign_in_token, told_to_end


def tokens(o, database):
    made = {user: sign_in_token(database, user, o.scopes) for user in o.user or ["alice"]}
    return {"token": next(iter(made.values())), "tokens": made}


def several(o, settings, tmp, port):
    with open(os.environ.get("LOG") or os.path.join(tmp, "log"), "a") as log:
        over = told_to_end()
        fleet = Fleet(o.instances, settings, tmp, log, database=True, at=port)
        pids = os.path.join(tmp, "pids.json")

        def note():
            with open(pids + ".new", "w") as file: json.dump({f"gateway-{n + 1}": p.pid for n, p in enumerate(fleet.gateways)}, file)
            os.replace(pids + ".new", pids)

        note()
        print(json.dumps({"url": f"http://localhost:{port}/mcp", "public": f"http://localhost:{port}", **tokens(o, fleet.database), "database": fleet.database, "steps": fleet.steps, "pids": pids}), flush=True)
        while not over.wait(.2):
            if any(p.poll() is not None for p in fleet.gateways): fleet.revive(over); note()
        fleet.end()
    if not o.dir: shutil.rmtree(tmp, ignore_errors=True)


def main():
    parent = os.getppid()
    die_with_parent()
    if os.getppid() != parent: return
    a = argparse.ArgumentParser()
    a.add_argument("--auth", type=json.loads, default={}); a.add_argument("--public", type=json.loads, default={})
    a.add_argument("--scopes", default="login"); a.add_argument("--user", action="append"); a.add_argument("--dir"); a.add_argument("--port", type=int); a.add_argument("--instances", type=int, default=1); a.add_argument("backends", nargs="+")
    o = a.parse_args()
    tmp = o.dir or tempfile.mkdtemp(prefix="gateway-")
    os.makedirs(tmp, exist_ok=True)
    port = o.port or free_port()                            # its own URL has to be known before it listens
    backends = {name: json.loads(what) if what.startswith("{") else {"url": what} for name, what in (b.split("=", 1) for b in o.backends)}
    settings = {"public": {"url": f"http://localhost:{port}", **o.public}, "auth": {"mode": "embedded", **o.auth}, "backends": backends}
    if o.instances > 1: return several(o, settings, tmp, port)
    data, config = os.path.join(tmp, "data"), os.path.join(tmp, "drawbridge.yaml")
    settings["public"] = {"listen": f"127.0.0.1:{port}", **settings["public"]}
    with open(config, "w") as file: json.dump({**settings, "admin": {"listen": "127.0.0.1:0"}, "data_dir": data}, file)    # JSON is YAML
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
            database = f"sqlite:{data}/drawbridge.db"
            print(json.dumps({"url": f"http://localhost:{port}/mcp", "public": f"http://localhost:{port}", "admin": at["admin"], "pid": p.pid, **tokens(o, database), "database": database}), flush=True)
    code = p.wait()
    if not o.dir: shutil.rmtree(tmp, ignore_errors=True)
    if not ready:
        sys.stderr.write("the gateway ended before it listened:\n" + "".join(lines[-20:])); sys.exit(code or 1)
    sys.exit(max(code, 0))


main()
