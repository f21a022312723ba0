"""Probes a server with the Python SDK 2.x.  SPEC=FILE ERA=auto|legacy|modern python probe_py2.py http URL  |  stdio COMMAND [ARGS...]"""
import asyncio, os, sys, warnings
from contextlib import asynccontextmanager
warnings.simplefilter("ignore")
from mcp import Client, StdioServerParameters, types as t
from mcp.client.stdio import stdio_client
from features import filled, run, seen

kind, where, *args = sys.argv[1:]
mode = {"modern": "2026-07-28"}.get(os.environ.get("ERA", "auto"), os.environ.get("ERA", "auto"))


async def elicit(ctx, p):
    seen["elicit"] += 1; return t.ElicitResult(action="accept", content=filled(p.requested_schema))

async def sample(ctx, p):
    seen["sample"] += 1; return t.CreateMessageResult(role="assistant", model="none", content=t.TextContent(type="text", text="pong"))

async def roots(ctx):
    seen["roots"] += 1; return t.ListRootsResult(roots=[t.Root(uri=os.environ.get("ROOT", "file:///interop-root"), name="interop-root")])

async def log(p): seen["logs"] += 1

async def message(m):
    n = getattr(m, "root", m)
    if isinstance(n, t.ResourceUpdatedNotification): seen["updated"] += 1
    if isinstance(n, t.ToolListChangedNotification): seen["changed"] += 1


class Adapter:
    def __init__(self, c): self.c = c
    def era(self): return "modern" if self.c.protocol_version >= "2026" else "legacy"
    def version(self): return self.c.protocol_version
    def list(self, of, cursor=None): return getattr(self.c, f"list_{of}")(cursor=cursor)
    def call(self, name, args, progress=None): return self.c.call_tool(name, args, progress_callback=progress)
    def read(self, uri): return self.c.read_resource(uri)
    def prompt(self, name, args): return self.c.get_prompt(name, args)
    def ping(self): return self.c.send_ping()
    def set_level(self, level): return self.c.set_logging_level(level)
    def structured(self, r): return r.structured_content
    def is_error(self, r): return r.is_error
    def templates(self, r): return r.resource_templates
    def template(self, x): return x.uri_template
    def next(self, r): return r.next_cursor
    def complete(self, ref, argument):
        return self.c.complete((t.PromptReference if ref["type"] == "ref/prompt" else t.ResourceTemplateReference)(**ref), argument)

    async def cancelled(self, name, args):
        call = asyncio.create_task(self.c.call_tool(name, args))
        await asyncio.sleep(.5)
        if call.done(): return False
        call.cancel()                                            # the SDK tells the server
        await asyncio.wait([call], timeout=2)
        return True

    @asynccontextmanager
    async def watching(self, uri):
        if self.era() == "legacy":
            if uri: await self.c.subscribe_resource(uri)
            yield
            if uri: await self.c.unsubscribe_resource(uri)
            return
        async with self.c.listen(**({"resource_subscriptions": [uri]} if uri else {"tools_list_changed": True})) as sub:
            async def count():
                async for _ in sub: seen["updated" if uri else "changed"] += 1
            task = asyncio.create_task(count())
            yield
            task.cancel(); await asyncio.wait([task])


@asynccontextmanager
async def session():
    server = stdio_client(StdioServerParameters(command=where, args=args, env=dict(os.environ)), errlog=open(os.devnull, "w")) if kind == "stdio" else where
    async with Client(server, mode=mode, log_level="debug", sampling_callback=sample, elicitation_callback=elicit, list_roots_callback=roots,
                      logging_callback=log, message_handler=message) as c:
        yield Adapter(c)

asyncio.run(run(session))
