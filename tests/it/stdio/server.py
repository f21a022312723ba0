"""An MCP server over stdio that does what the tests ask of it.

Settings come from the environment: ERA (legacy, modern), PROBE (how server/discover is answered before a handshake),
RECORD (a file that gets a line for each thing that happens), STUBBORN (ignores the end of stdin and SIGTERM), SILENT
(doesn't answer the handshake), NO_SESSIONS=exit (ends at a handshake).
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time

ERA = os.environ.get("ERA", "legacy")
PROBE = os.environ.get("PROBE", "-32601")
RECORD = os.environ.get("RECORD")
STUBBORN = os.environ.get("STUBBORN") == "1"
SILENT = os.environ.get("SILENT") == "1"
LOCK = threading.Lock()
STATE = {"level": None, "subscriptions": [], "initialized": False}
ASKED = {}


def record(what, text=""):
    if RECORD:
        with open(RECORD, "a", encoding="utf-8") as file:
            file.write(f"{what} {os.getpid()} {text}\n")


def write(text):
    with LOCK:
        sys.stdout.buffer.write(text.encode() + b"\n")
        sys.stdout.buffer.flush()


def send(message):
    write(json.dumps(dict(jsonrpc="2.0", **message), separators=(",", ":")))


def result(id, value):
    if ERA == "modern":
        value = dict(value, resultType="complete")
    send({"id": id, "result": value})


def error(id, code, message):
    send({"id": id, "error": {"code": code, "message": message}})


def text(value):
    return {"content": [{"type": "text", "text": value if isinstance(value, str) else json.dumps(value)}]}


def term(_signal, _frame):
    record("term")
    if not STUBBORN:
        os._exit(0)


def call(id, params):
    name, arguments = params["name"], params.get("arguments") or {}
    if name == "echo":
        return text(arguments.get("text", "ok"))
    if name == "state":
        return text(dict(STATE, pid=os.getpid()))
    if name == "hang":
        return None
    if name == "wait":
        while not os.path.exists(arguments["file"]):
            time.sleep(0.005)
        return text("done")
    if name == "crash":
        sys.stderr.write("last words\n")
        sys.stderr.flush()
        os._exit(arguments.get("code", 7))
    if name == "junk":
        for line in arguments["lines"]:
            write(line)
        return text("after the junk")
    if name == "huge":
        return text("x" * arguments["bytes"])
    if name == "huge-first":
        body = json.dumps(text("x" * arguments["bytes"]))
        write('{"jsonrpc":"2.0","result":%s,"id":%s}' % (body, json.dumps(id)))
        return None
    if name == "stderr":
        sys.stderr.write(arguments["text"] + "\n")
        sys.stderr.flush()
        return text("written")
    if name == "fork":
        child = subprocess.Popen(["sleep", "1000"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        own = subprocess.Popen(["sleep", "1001"], start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        # Its parent ends at once, so that it is nobody's child.
        shell = subprocess.run(["sh", "-c", "setsid sleep 1002 >/dev/null 2>&1 </dev/null & echo $!"], capture_output=True)
        return text([os.getpid(), child.pid, own.pid, int(shell.stdout)])
    if name == "ask":
        event = threading.Event()
        ASKED["a-1"] = event
        schema = {"type": "object", "properties": {}}
        send({"id": "a-1", "method": "elicitation/create", "params": {"message": "Which?", "requestedSchema": schema}})
        event.wait()
        return text(event.answer)
    if name == "environment":
        return text({key: os.environ.get(key) for key in arguments["keys"]})
    error(id, -32602, f"no tool {name}")
    return None


def serve_call(id, params):
    value = call(id, params)
    if value is not None:
        result(id, value)


def probe(id):
    if PROBE == "silent":
        return
    if PROBE == "exit":
        os._exit(1)
    if PROBE == "junk":
        write("Unexpected request!")
        return
    error(id, int(PROBE), "not before the handshake")


def take(message):
    method, id = message.get("method"), message.get("id")
    params = message.get("params") or {}
    if method is None:
        event = ASKED.pop(id, None)
        if event:
            event.answer = message
            event.set()
        return
    if id is None:
        return
    if method == "server/discover":
        if ERA != "modern":
            return probe(id)
        info = {"name": "python", "version": "1"}
        return result(id, {
            "supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}, "ttlMs": 0, "cacheScope": "public",
            "_meta": {"io.modelcontextprotocol/serverInfo": info},
        })
    if method == "initialize" and SILENT:
        return None
    if method == "initialize" and os.environ.get("NO_SESSIONS") == "exit":
        os._exit(1)
    if method == "initialize" and ERA == "legacy":
        STATE["initialized"] = True
        return result(id, {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}, "logging": {}, "resources": {"subscribe": True}},
            "serverInfo": {"name": "python", "version": "1"},
        })
    if ERA == "legacy" and not STATE["initialized"]:
        return error(id, -32600, "initialize first")
    if method == "logging/setLevel":
        STATE["level"] = params["level"]
        return result(id, {})
    if method == "resources/subscribe":
        STATE["subscriptions"].append(params["uri"])
        return result(id, {})
    if method == "ping":
        return result(id, {})
    if method == "tools/list":
        tool = {"name": "echo", "inputSchema": {"type": "object"}}
        return result(id, {"tools": [tool], "ttlMs": 0, "cacheScope": "public"} if ERA == "modern" else {"tools": [tool]})
    if method == "tools/call":
        threading.Thread(target=serve_call, args=(id, params), daemon=True).start()
        return None
    if method == "subscriptions/listen":
        meta = {"io.modelcontextprotocol/subscriptionId": id}
        return send({"method": "notifications/subscriptions/acknowledged",
                     "params": {"notifications": params.get("notifications", {}), "_meta": meta}})
    return error(id, -32601, f"no method {method}")


def main():
    signal.signal(signal.SIGTERM, term)
    record("start")
    for line in sys.stdin.buffer:
        record("in", line.decode().rstrip("\n"))
        take(json.loads(line))
    record("eof")
    while STUBBORN:
        time.sleep(1)


main()
