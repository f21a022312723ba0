"""Logs in with the OAuth client of the Python SDK, 1.x or 2.x, lists the tools and calls one. The browser is $BROWSER.

[AGAIN=SECONDS] python login_py.py URL TOOL
With AGAIN it calls once more after that time, when its access token is over: it has to refresh by itself.
With TOKEN it does not log in, and sends that.
Prints one line of JSON; code 1 where that did not work.
"""
import asyncio, importlib.metadata, json, logging, os, subprocess, sys, urllib.parse, warnings
warnings.simplefilter("ignore"); logging.disable(logging.CRITICAL)
from mcp.client.auth import OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import OAuthClientMetadata

is_new = importlib.metadata.version("mcp").startswith("2")
url, tool = sys.argv[1:3]
out, given, opened = {"ok": False}, [], []


class Storage:
    tokens = client = None
    async def get_tokens(self): return self.tokens
    async def set_tokens(self, tokens): self.tokens = tokens; given.append(tokens.access_token)
    async def get_client_info(self): return self.client
    async def set_client_info(self, client): self.client = client


async def main():
    came = asyncio.get_running_loop().create_future()

    async def callback(reader, writer):
        target = (await reader.readline()).split()[1].decode()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\nconnection: close\r\n\r\ndone"); await writer.drain(); writer.close()
        if not came.done(): came.set_result({k: v[0] for k, v in urllib.parse.parse_qs(urllib.parse.urlsplit(target).query).items()})

    server = await asyncio.start_server(callback, "127.0.0.1", 0)
    to = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/callback"

    async def redirect(where): opened.append(where); subprocess.Popen([os.environ["BROWSER"], where], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    async def answer():
        got = await asyncio.wait_for(came, 30)
        if not is_new: return got.get("code"), got.get("state")
        from mcp.client.auth import AuthorizationCodeResult
        return AuthorizationCodeResult(code=got.get("code"), state=got.get("state"), iss=got.get("iss"))

    metadata = OAuthClientMetadata(client_name="login_py " + ("2" if is_new else "1"), redirect_uris=[to], grant_types=["authorization_code", "refresh_token"], response_types=["code"], token_endpoint_auth_method="none")
    storage = Storage()
    bearer = os.environ.get("TOKEN")
    how = dict(headers={"authorization": f"Bearer {bearer}"}) if bearer else dict(auth=OAuthClientProvider(server_url=url, client_metadata=metadata, storage=storage, redirect_handler=redirect, callback_handler=answer))

    async def use(list_tools, call_tool):
        out["tools"] = len((await list_tools()).tools)
        call = lambda: call_tool(tool, {})
        out["result"] = (await call()).content[0].text[:60]
        if os.environ.get("AGAIN"):
            await asyncio.sleep(float(os.environ["AGAIN"]))
            out["again"] = (await call()).content[0].text[:60]
            if len(given) < 2: raise RuntimeError("the token is still the first")
            out["refreshed"] = len(given) - 1

    if is_new:
        import httpx2
        from mcp import Client
        async with httpx2.AsyncClient(**how, timeout=30) as http, Client(streamable_http_client(url, http_client=http)) as c:
            out["version"] = c.protocol_version
            await use(c.list_tools, c.call_tool)
    else:
        import httpx
        from mcp import ClientSession
        async with httpx.AsyncClient(**how, timeout=30, follow_redirects=True) as http, streamable_http_client(url, http_client=http) as (r, w, _), ClientSession(r, w) as c:
            out["version"] = (await c.initialize()).protocolVersion
            await use(c.list_tools, c.call_tool)
    if len(opened) != (0 if bearer else 1): raise RuntimeError(f"the browser was opened {len(opened)} times")
    out["scope"] = storage.tokens and storage.tokens.scope; out["ok"] = True
    server.close()


def root(error):
    while getattr(error, "exceptions", None): error = error.exceptions[0]
    return error

try: asyncio.run(asyncio.wait_for(main(), 100))
except BaseException as e: out["error"] = f"{type(root(e)).__name__}: {root(e)}"[:300]
print(json.dumps(out))
sys.exit(0 if out["ok"] else 1)
