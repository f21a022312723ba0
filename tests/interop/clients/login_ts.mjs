// Logs in with the OAuth client of the TypeScript SDK, 1.x or 2.x, lists the tools and calls one. The browser is $BROWSER.
//   SDK=1|2 [AGAIN=SECONDS] node login_ts.mjs URL TOOL
// With AGAIN it calls once more after that time, when its access token is over: it has to refresh by itself.
// With TOKEN it does not log in, and sends that.
// Prints one line of JSON; code 1 where that did not work.
import { createServer } from 'node:http';
import { spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
const [url, tool] = process.argv.slice(2);
const sdk = process.env.SDK ?? '2';
const { Client, StreamableHTTPClientTransport, UnauthorizedError } = sdk === '1'
  ? { ...await import('@modelcontextprotocol/sdk/client/index.js'), ...await import('@modelcontextprotocol/sdk/client/streamableHttp.js'), ...await import('@modelcontextprotocol/sdk/client/auth.js') }
  : await import('@modelcontextprotocol/client');

const server = createServer();
await new Promise(r => server.listen(0, '127.0.0.1', r));
const redirectUrl = `http://127.0.0.1:${server.address().port}/callback`;
let client, tokens, verifier, discovered, opened = 0, given = 0;
const state = randomBytes(16).toString('base64url');
const provider = {
  redirectUrl,
  clientMetadata: { client_name: `login_ts ${sdk}`, redirect_uris: [redirectUrl], grant_types: ['authorization_code', 'refresh_token'], response_types: ['code'], token_endpoint_auth_method: 'none', application_type: 'native' },
  state: () => state,
  clientInformation: () => client, saveClientInformation: c => { client = c; },
  tokens: () => tokens, saveTokens: t => { tokens = t; given++; },
  redirectToAuthorization: to => { opened++; spawn(process.env.BROWSER, [to.href], { stdio: 'ignore', detached: true }).unref(); },
  codeVerifier: () => verifier, saveCodeVerifier: v => { verifier = v; },
  discoveryState: () => discovered, saveDiscoveryState: d => { discovered = d; },
  invalidateCredentials: what => { console.error('invalidated', what); tokens = undefined; if (what === 'all' || what === 'client') client = undefined; }
};
const came = new Promise(r => server.on('request', (q, s) => { s.end('You can close this page.'); r(new URL(q.url, redirectUrl).searchParams); }));
const connect = async () => {
  const c = new Client({ name: 'login-ts', version: '1' }, sdk === '1' ? {} : { versionNegotiation: { mode: 'auto' } });
  const transport = new StreamableHTTPClientTransport(new URL(url), process.env.TOKEN ? { requestInit: { headers: { authorization: `Bearer ${process.env.TOKEN}` } } } : { authProvider: provider });
  try { await c.connect(transport); return c; } catch (e) {
    if (!(e instanceof UnauthorizedError)) throw e;
    const p = await Promise.race([came, new Promise((_, no) => setTimeout(() => no(new Error('nobody came back from the browser')), 30000))]);
    if (p.get('state') !== state) throw new Error('the state is not ours');
    await (sdk === '1' ? transport.finishAuth(p.get('code')) : transport.finishAuth(p));
    return null;
  }
};
const out = { ok: false };
try {
  const c = await connect() ?? await connect();
  out.tools = (await c.listTools()).tools.length;
  const call = async () => (await c.callTool({ name: tool, arguments: {} })).content[0].text.slice(0, 60);
  out.result = await call();
  if (process.env.AGAIN) {
    const before = tokens.access_token;
    await new Promise(r => setTimeout(r, Number(process.env.AGAIN) * 1000));
    out.again = await call();
    if (tokens.access_token === before) throw new Error('the token is still the first');
    out.refreshed = given - 1;
  }
  if (opened !== (process.env.TOKEN ? 0 : 1)) throw new Error(`the browser was opened ${opened} times`);
  out.scope = tokens?.scope; out.ok = true;
  await c.close();
} catch (e) { out.error = `${e.name}: ${e.message}`.slice(0, 300); }
console.log(JSON.stringify(out));
process.exit(out.ok ? 0 : 1);
