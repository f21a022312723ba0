"""Probes a server with the Python SDK 1.x.  SPEC=FILE python probe_py1.py http|sse URL  |  stdio COMMAND [ARGS...]"""
import asyncio, os, sys
from contextlib import asynccontextmanager
from mcp import ClientSession, StdioServerParameters, types as t
from mcp.client.sse import sse_client
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamablehttp_client
from features import filled, run, seen

kind, where, *args = sys.argv[1:]


async def elicit(ctx, p):
    seen["elicit"] += 1; return t.ElicitResult(action="accept", content=filled(p.requestedSchema))

async def sample(ctx, p):
    seen["sample"] += 1; return t.CreateMessageResult(role="assistant", model="none", content=t.TextContent(type="text", text="pong"))

async def roots(ctx):
    seen["roots"] += 1; return t.ListRootsResult(roots=[t.Root(uri=os.environ.get("ROOT", "file:///interop-root"), name="interop-root")])

async def log(p): seen["logs"] += 1

async def message(m):
    n = getattr(m, "root", None)
    if isinstance(n, t.ResourceUpdatedNotification): seen["updated"] += 1
    if isinstance(n, t.ToolListChangedNotification): seen["changed"] += 1


class Adapter:
    def __init__(self, c, init): self.c, self.init = c, init
    def era(self): return "legacy"
    def version(self): return self.init.protocolVersion
    def list(self, of, cursor=None): return getattr(self.c, f"list_{of}")(cursor=cursor)
    def call(self, name, args, progress=None): return self.c.call_tool(name, args, progress_callback=progress)
    def read(self, uri): return self.c.read_resource(uri)
    def prompt(self, name, args): return self.c.get_prompt(name, args)
    def ping(self): return self.c.send_ping()
    def set_level(self, level): return self.c.set_logging_level(level)
    def structured(self, r): return r.structuredContent
    def is_error(self, r): return r.isError
    def templates(self, r): return r.resourceTemplates
    def template(self, x): return x.uriTemplate
    def next(self, r): return r.nextCursor
    def complete(self, ref, argument):
        return self.c.complete((t.PromptReference if ref["type"] == "ref/prompt" else t.ResourceTemplateReference)(**ref), argument)

    async def cancelled(self, name, args):
        call = asyncio.create_task(self.c.call_tool(name, args))
        await asyncio.sleep(.5)
        await self.c.send_notification(t.ClientNotification(t.CancelledNotification(method="notifications/cancelled",
            params=t.CancelledNotificationParams(requestId=self.c._request_id - 1, reason="enough"))))
        done, _ = await asyncio.wait([call], timeout=1)         # an error may come, an answer must not
        call.cancel()
        return not done or call.exception() is not None

    @asynccontextmanager
    async def watching(self, uri):
        if uri: await self.c.subscribe_resource(uri)
        yield
        if uri: await self.c.unsubscribe_resource(uri)


@asynccontextmanager
async def session():
    t0 = stdio_client(StdioServerParameters(command=where, args=args, env=dict(os.environ)), errlog=open(os.devnull, "w")) if kind == "stdio" \
        else sse_client(where) if kind == "sse" else streamablehttp_client(where)
    async with t0 as s, ClientSession(s[0], s[1], sampling_callback=sample, elicitation_callback=elicit, list_roots_callback=roots,
                                      logging_callback=log, message_handler=message) as c:
        yield Adapter(c, await c.initialize())

asyncio.run(run(session))
