"""A stdio server of 2025-11-25 with the one tool of the chaos run; writes each run into the file it is given."""

import json
import os
import sys
import threading
import time

ledger = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
writing, waiting = threading.Lock(), {}


def say(**message):
    with writing:
        print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def work(id, params):
    given = params["arguments"]
    call = given["call"]
    os.write(ledger, f"{call}/1\n".encode())  # one write: lines of several processes don't mix
    token = params.get("_meta", {}).get("progressToken")
    if token is not None and given["ms"]:
        say(method="notifications/progress", params={"progressToken": token, "progress": 1})
    time.sleep(given["ms"] / 1000)
    text = call
    if given["ask"]:
        answered = threading.Event()
        waiting[f"ask-{call}"] = [answered, None]
        schema = {"type": "object", "properties": {"call": {"type": "string"}}}
        say(id=f"ask-{call}", method="elicitation/create", params={"message": call, "requestedSchema": schema})
        answered.wait(20)
        answer = waiting.pop(f"ask-{call}")[1] or {}
        text = f"{call} {answer.get('content', {}).get('call', 'unanswered')}"
    say(id=id, result={"content": [{"type": "text", "text": text}]})


for line in sys.stdin:
    message = json.loads(line)
    method, id = message.get("method"), message.get("id")
    if method is None:
        if found := waiting.get(id):
            found[1] = message.get("result")
            found[0].set()
    elif method == "initialize":
        server = {"name": "chaos", "version": "1"}
        version = message["params"]["protocolVersion"]
        say(id=id, result={"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": server})
    elif method == "tools/list":
        say(id=id, result={"tools": [{"name": "work", "inputSchema": {"type": "object"}}]})
    elif method == "tools/call":
        threading.Thread(target=work, args=(id, message["params"]), daemon=True).start()
    elif id is not None:
        say(id=id, result={})
