"""The feature probes, over either Python SDK. SPEC names a JSON file: {feature: parameters} (see matrix.py).

An adapter `a` gives the SDK's calls with plain names and the era; see probe_py1.py and probe_py2.py.
"""
import asyncio, json, os

seen = dict.fromkeys(["logs", "updated", "changed", "elicit", "sample", "roots"], 0)
DEFAULTS = {"boolean": True, "integer": 1, "number": 1, "array": []}


def must(ok, why):
    if not ok: raise AssertionError(why)


def flat(x):
    if isinstance(x, list): return "[" + ", ".join(flat(i) for i in x) + "]"
    return x.model_dump_json() if hasattr(x, "model_dump_json") else json.dumps(x, ensure_ascii=False, default=str)


def holds(x, want):
    must(want is None or json.dumps(want, ensure_ascii=False)[1:-1] in flat(x), f"no {want} in {flat(x)[:160]}")


async def until(ok, why, seconds=5):
    for _ in range(int(seconds * 50)):
        if ok(): return
        await asyncio.sleep(.02)
    must(ok(), why() if callable(why) else why)


def filled(schema):
    """What a person might fill into an elicitation form."""
    return {k: p.get("default") or (p.get("enum") or [None])[0] or DEFAULTS.get(p.get("type")) or ("x@example.com" if p.get("format") == "email" else "x")
            for k, p in ((schema or {}).get("properties") or {}).items()}


async def tools(a, s):
    names = [t.name for t in (await a.list("tools")).tools]
    must(len(names) >= s.get("min", 1), f"{len(names)} tools"); must(s.get("has") in [None, *names], f"no tool {s.get('has')}")

async def call(a, s): holds((await a.call(s["tool"], s["args"])).content, s.get("expect"))

async def structured(a, s): holds(a.structured(await a.call(s["tool"], s["args"])), s["expect"])

async def content(a, s):
    types = [x.type for x in (await a.call(s["tool"], s["args"])).content]
    for t in s["types"]: must(t in types, f"no {t} in {types}")

async def big(a, s):
    n = len((await a.call(s["tool"], s["args"])).content[0].text)
    must(n == s["length"], f"{n} characters")

async def toolerror(a, s): must(a.is_error(await a.call(s["tool"], s["args"])), "isError is not set")

async def badtool(a, s):
    try: r = await a.call("no_such_tool_here", {})
    except Exception as e: must("error" in dir(e), f"no JSON-RPC error: {e!r}")
    else: must(a.is_error(r), f"answered {flat(r)[:100]}")
    await a.list("tools")                                                # the connection still serves

async def resources(a, s):
    got = [str(r.uri) for r in (await a.list("resources")).resources]
    must(s["has"] in got, f"no resource {s['has']}"); holds(await a.read(s["has"]), s.get("expect"))

async def templates(a, s):
    r = await a.list("resource_templates")
    got = [a.template(t) for t in a.templates(r)]
    must(s["has"] in got, f"no template {s['has']}"); holds(await a.read(s["uri"]), s.get("expect"))

async def prompts(a, s):
    must(s["has"] in [p.name for p in (await a.list("prompts")).prompts], f"no prompt {s['has']}")
    holds(await a.prompt(s["has"], s["args"]), s.get("expect"))

async def complete(a, s): holds((await a.complete(s["ref"], s["argument"])).completion.values, s["expect"])

async def ping(a, s):
    if a.era() == "modern": return "n/a"
    await a.ping()

async def pages(a, s):
    n = rounds = 0; cursor = None
    while True:
        r = await a.list(s["of"], cursor)
        n += len(getattr(r, s["of"])); rounds += 1; cursor = a.next(r)
        if not cursor or rounds > 50: break
    must(n >= s["min"] and rounds > 1, f"{n} in {rounds} pages")

async def progress(a, s):
    got = []
    async def on(progress, total, message): got.append(progress)
    await a.call(s["tool"], s["args"], progress=on)
    must(len(got) >= s["min"], f"{len(got)} progress notifications")

async def cancel(a, s):
    async def count(): return json.loads((await a.call(s["counter"]["tool"], {})).content[0].text)[s["counter"]["field"]] if "counter" in s else 0
    before = await count()
    must(await a.cancelled(s["tool"], s["args"]), "the call was answered")
    if "counter" not in s:
        await a.list("tools"); return
    for _ in range(50):
        if await count() > before: return
        await asyncio.sleep(.1)
    raise AssertionError("the server was not told")

async def logging(a, s):
    n = seen["logs"]
    if a.era() != "modern": await a.set_level("debug")
    await a.call(s["tool"], s["args"])
    await until(lambda: seen["logs"] - n >= s["min"], lambda: f"{seen['logs'] - n} log messages")

def asked(kind):
    async def probe(a, s):
        n = seen[kind]; r = await a.call(s["tool"], s["args"])
        must(seen[kind] > (0 if s.get("early") else n), f"not asked; {flat(r.content)[:120]}"); holds(r.content, s.get("expect"))
    return probe

async def subscribe(a, s):
    n = seen["updated"]
    async with a.watching(s["uri"]):
        await a.call(s["touch"], {})
        await until(lambda: seen["updated"] > n, "no notifications/resources/updated")

async def changed(a, s):
    n = seen["changed"]
    async with a.watching(None):
        await a.call(s["touch"], {})
        await until(lambda: seen["changed"] > n, "no notifications/tools/list_changed")

PROBES = {f.__name__: f for f in (tools, call, structured, content, big, toolerror, badtool, resources, templates, prompts, complete, ping, pages, progress, cancel, logging)}
PROBES |= {"elicit": asked("elicit"), "sample": asked("sample"), "roots": asked("roots"), "subscribe": subscribe, "changed": changed}


def why(e):
    while isinstance(e, BaseExceptionGroup): e = e.exceptions[0]
    return f"FAIL: {type(e).__name__} {str(e)[:200]}"


async def run(session):
    """session: an async context manager that connects and gives the adapter. Prints one JSON object."""
    spec, out = json.load(open(os.environ["SPEC"])), {}
    cm = session()
    try:
        async with asyncio.timeout(15): a = await cm.__aenter__()
        out["connect"] = "ok"
    except BaseException as e:
        out["connect"] = why(e)
        print(json.dumps(out), flush=True); os._exit(0)
    out["version"] = a.version()
    for name, probe in PROBES.items():
        if name not in spec: out[name] = "n/a"; continue
        try: out[name] = "n/a" if await asyncio.wait_for(probe(a, spec[name]), 15) == "n/a" else "ok"
        except Exception as e: out[name] = "FAIL: no answer in 15 s" if isinstance(e, TimeoutError) else why(e)
    try:
        async with asyncio.timeout(15): await cm.__aexit__(None, None, None)
        out["close"] = "ok"
    except BaseException as e: out["close"] = why(e)
    print(json.dumps(out), flush=True); os._exit(0)
