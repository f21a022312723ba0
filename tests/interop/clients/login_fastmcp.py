"""Logs in with the OAuth client of fastmcp, lists the tools and calls one. fastmcp opens $BROWSER by itself.

[AGAIN=SECONDS] python login_fastmcp.py URL TOOL      AGAIN: call once more after that time, with a token that is over
With TOKEN it does not log in, and sends that.
Prints one line of JSON; code 1 where that did not work.
"""
import asyncio, json, logging, os, sys, warnings
warnings.simplefilter("ignore"); logging.disable(logging.CRITICAL)
from fastmcp import Client
from fastmcp.client.auth import OAuth

out, given = {"ok": False}, []


async def main(url, tool):
    bearer = os.environ.get("TOKEN")
    auth = bearer or OAuth()
    async with Client(url, auth=auth) as c:
        text = lambda r: r.content[0].text[:60]
        out["tools"] = len(await c.list_tools())
        out["result"] = text(await c.call_tool(tool, {}))
        if os.environ.get("AGAIN"):
            before = auth.context.current_tokens.access_token
            await asyncio.sleep(float(os.environ["AGAIN"]))
            out["again"] = text(await c.call_tool(tool, {}))
            if auth.context.current_tokens.access_token == before: raise RuntimeError("the token is still the first")
            out["refreshed"] = True
        if not bearer: out["scope"] = auth.context.current_tokens.scope
        out["ok"] = True


def root(error):
    while getattr(error, "exceptions", None): error = error.exceptions[0]
    return error

try: asyncio.run(asyncio.wait_for(main(*sys.argv[1:3]), 100))
except BaseException as e: out["error"] = f"{type(root(e)).__name__}: {root(e)}"[:300]
print(json.dumps(out))
sys.exit(0 if out["ok"] else 1)
