// The gateway's pages in Chromium; pages.sh starts it, with a backend, and another at which each user has an account, at the provider ISSUER.
import { spawn } from 'node:child_process';
import { createHash, randomBytes } from 'node:crypto';
import { createServer } from 'node:http';
import { mkdirSync, readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { chromium } from 'playwright-core';
const axe = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
const { SHOTS, GATEWAY, DIR, BACKEND, TRACKER, ISSUER } = process.env, INSTANCES = Number(process.env.INSTANCES ?? 3);
mkdirSync(SHOTS, { recursive: true });

let passed = 0, failed = 0;
const check = (name, ok, said = '') => { ok ? passed++ : failed++; console.log(`${ok ? 'ok' : 'FAILED'} ${name}${ok ? '' : `: ${typeof said === 'string' ? said : JSON.stringify(said)}`.slice(0, 500)}`); };

let child;
const tracker = JSON.stringify({ url: TRACKER, auth: { kind: 'user_oauth', issuer: ISSUER } });
const notes = JSON.stringify({ url: BACKEND, auth: { kind: 'user_secret', header: 'X-Api-Key', help: 'https://notes.example/keys' } });
const gateway = (...more) => new Promise((ready, no) => { // one or several; the same one again with its port
  child = spawn('python3', [GATEWAY, '--dir', DIR, '--instances', INSTANCES, '--user', 'alice', '--user', 'bob', '--auth', JSON.stringify({ registration: { dcr: 'open' }, name: 'Acme tools' }), ...more, `everything=${BACKEND}`, `tracker=${tracker}`, `notes=${notes}`], { stdio: ['ignore', 'pipe', 'inherit'] });
  let text = '';
  child.stdout.on('data', d => { text += d; if (text.includes('\n')) ready(JSON.parse(text)); });
  child.on('exit', () => no(new Error('the gateway has ended')));
});
let about = await gateway();
const P = about.public, port = new URL(P).port;

// Which instances have answered what, since `from`: the balancer's log says so once an answer is over.
const lines = () => about.steps ? readFileSync(about.steps, 'utf8').trim().split('\n') : [];
const served = (from, path) => lines().slice(from).flatMap(l => { const m = /\] (gateway-\d+) .* (GET|POST) (\S+)$/.exec(l); return m && path.test(`${m[2]} ${m[3]}`) ? [m[1]] : []; });
const soon = async what => { for (let n = 0; n < 150; n++) { const is = await what(); if (is) return is; await new Promise(r => setTimeout(r, 100)); } };
const crash = async path => { // kills the instance that has answered this last; where there is one alone, it comes back
  if (INSTANCES > 1) {
    const name = await soon(() => served(0, path).at(-1)), pid = JSON.parse(readFileSync(about.pids))[name];
    process.kill(pid, 'SIGKILL');
    return name;
  }
  const ended = new Promise(r => child.removeAllListeners('exit').on('exit', r));
  process.kill(about.pid, 'SIGKILL'); await ended;
  about = await gateway('--port', port);
};

// What a client is answered at, on this machine.
const app = createServer((q, s) => { s.setHeader('content-type', 'text/html'); s.end('<!doctype html><html lang="en"><title>App</title><h1>Back in the app</h1>'); });
await new Promise(r => app.listen(0, 'localhost', r));
const back = `http://localhost:${app.address().port}/callback`;
const register = async (client_name, uri) => (await (await fetch(`${P}/register`, { method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify({ client_name, redirect_uris: [uri] }) })).json()).client_id;
const name = 'Notes & <b>Co</b>';
const client = await register(name, back), elsewhere = await register('An app on the web with a name that goes on and on and has no end at all', 'https://notes.example/callback');
const verifier = randomBytes(32).toString('base64url');
const ask = (more = {}) => `${P}/authorize?${new URLSearchParams({ response_type: 'code', client_id: client, redirect_uri: back, state: 'a state', code_challenge: createHash('sha256').update(verifier).digest('base64url'), code_challenge_method: 'S256', resource: `${P}/mcp`, scope: 'mcp:read mcp:write', ...more })}`;

const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium', args: ['--no-sandbox'] });
const complaints = [];
const person = async (locale = 'en-GB') => {
  const context = await browser.newContext({ locale, viewport: { width: 1280, height: 800 } });
  const page = await context.newPage();
  page.on('console', m => { if (m.type() === 'error' && !/Failed to load resource/.test(m.text())) complaints.push(m.text()); });
  return page;
};
const look = async (page, what) => { // pictures of it, and what axe says of each
  for (const [size, width, height] of [['wide', 1280, 800], ['phone', 360, 740]]) for (const colorScheme of ['light', 'dark']) {
    await page.setViewportSize({ width, height });
    await page.emulateMedia({ colorScheme });
    await page.screenshot({ path: `${SHOTS}/${what}-${size}-${colorScheme}.png`, fullPage: true });
    const seen = await page.evaluate(async source => {
      (0, eval)(source);                                   // the page's policy allows no script of its own
      const found = await globalThis.axe.run({ runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice'] });
      return { wrong: found.violations.map(v => `${v.id}: ${v.help} (${v.nodes.map(n => n.html.slice(0, 80)).join(' | ')})`), scrolls: document.documentElement.scrollWidth > document.documentElement.clientWidth, narrow: [...document.querySelectorAll('p, dt, dd, label')].filter(e => e.clientWidth < 100).length };
    }, axe).catch(e => ({ wrong: [String(e)], scrolls: false, narrow: 0 }));
    check(`${what}, ${size}, ${colorScheme}: axe finds nothing`, seen.wrong.length === 0, seen.wrong);
    check(`${what}, ${size}, ${colorScheme}: nothing sticks out or is squeezed`, !seen.scrolls && seen.narrow === 0, seen);
  }
  await page.setViewportSize({ width: 1280, height: 800 });
  await page.emulateMedia({ colorScheme: 'light' });
};
const arrived = async page => { await page.waitForURL(u => u.href.startsWith(back), { timeout: 10000 }); return new URL(page.url()).searchParams; };
const heading = page => page.locator('h1').innerText();
const words = {
  'en-GB': { connect: 'Connect an account', connected: 'Connected', agree: 'did not agree', old: 'too old', another: 'belongs to another account', failed: 'was not accepted', error: 'This did not work', list: 'Your accounts at other services', no: 'not connected', yes: '127.0.0.1 · connected', key: 'no key', consent: 'Allow access?' },
  'de-CH': { connect: 'Konto verbinden', connected: 'Verbunden', agree: 'nicht zugestimmt', old: 'zu alt', another: 'gehört zu einem anderen Konto', failed: 'nicht angenommen', error: 'Das hat nicht geklappt', list: 'Ihre Konten bei anderen Diensten', no: 'nicht verbunden', yes: '127.0.0.1 · verbunden', key: 'kein Schlüssel', consent: 'Zugriff erlauben?' }
};

// A client calls a tool of a backend at which each user has an account, and this one has none yet: from the link to the call that works.
const connecting = async ({ locale, user, era, prefix, other }) => {
  const say = words[locale], ok = (what, is, said) => check(`${era} client, ${locale}: ${what}`, is, said);
  const page = await person(locale), from = lines().length;
  const is = async (title, text) => await heading(page) === title && (await page.locator('main').innerText()).includes(text);
  const signIn = async (page, token) => { await page.fill('#token', token); await page.click('button[type=submit]'); };
  // Login and consent, of a person who is then signed in with this browser.
  await page.goto(ask());
  await signIn(page, about.tokens[user]);
  await page.click('button[value=allow]');
  const code = (await arrived(page)).get('code');
  const { access_token } = await (await fetch(`${P}/token`, { method: 'POST', body: new URLSearchParams({ grant_type: 'authorization_code', client_id: client, code, redirect_uri: back, code_verifier: verifier }) })).json();
  if (INSTANCES > 1) ok('each instance has had a part in the login', await soon(() => new Set(served(from, /(\/authorize|\/login|\/consent|\/token)$/)).size === INSTANCES), lines().slice(from));
  await page.goto(`${P}/connections`);
  ok('the list of accounts says that there is none yet', await is(say.list, say.no), await page.content());
  await look(page, `${prefix}connections-none`);

  // The call. One that speaks 2026-07-28 is asked, says that it goes on, and its call waits; the other is told where, and calls again.
  const mcp = new Client({ name: 'pages', version: '1' }, { capabilities: { elicitation: { url: {} } }, versionNegotiation: { mode: era === 'modern' ? { pin: '2026-07-28' } : era } });
  let goOn, told, link;
  const going = new Promise(r => { goOn = r; });
  const asked = new Promise(r => mcp.setRequestHandler('elicitation/create', async q => { r(q.params.url); await going; return { action: 'accept' }; }));
  const complete = new Promise(r => mcp.setNotificationHandler('notifications/elicitation/complete', n => r(n.params.elicitationId)));
  await mcp.connect(new StreamableHTTPClientTransport(new URL(`${P}/mcp`), { requestInit: { headers: { authorization: `Bearer ${access_token}` } } }));
  const names = async () => (await mcp.listTools()).tools.map(t => t.name).filter(n => n.startsWith('tracker__'));
  const call = () => mcp.callTool({ name: 'tracker__whoami', arguments: {} }, { timeout: 120000 });
  ok('until it is connected the backend has one tool', String(await names()) === 'tracker__connect', await names());
  const first = call().catch(e => e);
  if (era === 'legacy') { told = await first; link = told.data?.elicitations?.[0]?.url; } else link = await Promise.race([asked, first]);
  ok(`the call is answered with a link${era === 'legacy' ? ', by the error -32042' : ''}`, String(link).startsWith(`${P}/connect/tracker?e=`) && (!told || told.code === -32042), told ?? link);

  // Somebody else opens it, and it is opened after it was changed.
  const stranger = await person(locale);
  await stranger.goto(link);
  await signIn(stranger, other);
  ok('somebody else is turned away', await heading(stranger) === say.error && (await stranger.locator('[role=alert]').innerText()).includes(say.another), await stranger.content());
  await look(stranger, `${prefix}connect-other`);
  await stranger.click('button[type=submit]');
  await signIn(stranger, about.tokens[user]);
  ok('whoever it belongs to can sign in there instead, and is where it leads', await heading(stranger) === say.connect && (await stranger.locator('main').innerText()).includes(user), await stranger.content());
  await stranger.context().close();
  const changed = await page.goto(link.slice(0, -5) + (link.at(-5) === 'A' ? 'B' : 'A') + link.slice(-4));
  ok('a link that was changed is refused', changed.status() === 400 && await is(say.error, say.old), await page.content());

  // The user denies at the provider, after having logged in there.
  const go = async () => {
    await page.goto(link);
    await page.click('.buttons button');
    await page.waitForURL(u => u.href.startsWith(ISSUER));
  };
  await page.goto(link);
  ok('the page says what is connected, where, and as whom', await is(say.connect, 'tracker (127.0.0.1)') && await is(say.connect, user), await page.content());
  await look(page, `${prefix}connect`);
  await go();
  await page.fill('[name=user]', `${user}-at-tracker`); await page.click('[value=allow]');
  await page.waitForSelector('text=lets another service act'); await page.click('[value=deny]');
  await page.waitForURL(u => u.href.startsWith(P));
  ok('who denies at the provider is told that nothing is connected', await is(say.error, say.agree), await page.content());
  await look(page, `${prefix}connect-denied`);
  await page.click('a[href="/connections"]');
  ok('and finds the way to the list of accounts', await is(say.list, say.no), await page.content());

  // The provider's answer says that it is another's.
  await fetch(`${ISSUER}/_test/set?iss=http://another.example`);
  await go(); await page.click('[value=allow]');
  await page.waitForURL(u => u.href.startsWith(P));
  await fetch(`${ISSUER}/_test/set`);
  ok('an answer of another server is not accepted', await is(say.error, say.failed), await page.content());
  await look(page, `${prefix}connect-failed`);

  // And then agrees, in a provider that has forgotten who it is; the instance that sent the browser there is gone when it comes back.
  const before = lines().length;
  await page.context().clearCookies({ domain: new URL(ISSUER).hostname });
  await go();
  const left = INSTANCES > 1 && (era === 'legacy' ? await crash(/^POST \/connect\/tracker$/) : await soon(() => served(before, /^POST \/connect\/tracker$/).at(-1)));
  goOn();
  await page.fill('[name=user]', `${user}-at-tracker`); await page.click('[value=allow]');
  await page.waitForSelector('text=lets another service act'); await page.click('[value=allow]');
  await page.waitForURL(u => u.href.startsWith(`${P}/connect/callback/`));
  ok('who agrees is told that it is connected', await is(say.connected, 'tracker'), await page.content());
  if (INSTANCES > 1) ok('the browser has come back to another instance than the one that it left', await soon(() => served(before, /^GET \/connect\/callback\/tracker$/).at(-1)) !== left, [left, ...lines().slice(before)]);
  const came = page.url();
  await look(page, `${prefix}connected`);
  if (era === 'legacy') {
    const heard = await Promise.race([complete, new Promise(r => setTimeout(r, 15000))]);
    ok('the client hears that it is done', heard && heard === told.data.elicitations[0].elicitationId, heard);
  }
  const answer = await (era === 'legacy' ? call() : first);
  ok(`its call works${era === 'legacy' ? '' : ', without being sent again'}, with the account of the user`, answer?.content?.[0]?.text.includes(`"${user}-at-tracker"`), answer);
  ok('and all tools are there', (await names()).length > 5, await names());
  const again = await page.goto(came);
  ok('the way back is good once', again.status() === 400 && await is(say.error, say.old), await page.content());
  await look(page, `${prefix}connect-used`);

  await page.goto(`${P}/connections`);
  ok('the list of accounts has it', await is(say.list, say.yes), await page.content());
  await look(page, `${prefix}connections`);
  await page.click('form[action="/connections/tracker/disconnect"] button');
  ok('it can be disconnected', await soon(async () => !await is(say.list, say.yes)), await page.content());

  // A backend that has keys of its own: one is given here.
  const give = async key => { await page.fill('#key', key); await page.click('.buttons button'); };
  await page.click('a[href="/connect/notes"]');
  ok('the page asks for a key', await is(say.connect, 'notes (127.0.0.1)') && await page.locator('#key').count() === 1, await page.content());
  await look(page, `${prefix}key`);
  await give('na\u00efve');
  ok('what is none is refused', (await page.locator('[role=alert]').innerText()).includes(say.key), await page.content());
  await look(page, `${prefix}key-wrong`);
  await give('k-1');
  ok('one is kept', await is(say.connected, 'notes'), await page.content());
  await page.click('a[href="/connections"]');
  await page.click('form[action="/connections/notes/disconnect"] button');
  ok('and taken back', await soon(async () => !await is(say.list, say.yes)), await page.content());
  ok('then there is one tool again', await soon(async () => String(await names()) === 'tracker__connect'), await names());
  // From a consent to an account that is missing, and back to the same consent.
  const main = async () => page.locator('main').innerText(), missing = `notes (127.0.0.1): ${say.no}`;
  await page.goto(ask({ state: 'on the way' }));
  ok('a consent names the accounts that are missing', await heading(page) === say.consent && (await main()).includes(missing), await page.content());
  await look(page, `${prefix}consent-accounts`);
  await page.click('a[href^="/connect/notes?back="]');
  await give('k-2');
  ok('with the account the same consent is there again', await soon(async () => await heading(page) === say.consent) && !(await main()).includes(missing), await page.content());
  await page.click('button[value=allow]');
  ok('and is answered', (await arrived(page)).get('state') === 'on the way', page.url());
  await page.goto(`${P}/connections`);
  await page.click('form[action="/connections/notes/disconnect"] button');
  await soon(async () => !await is(say.list, say.yes));
  await mcp.close();
  await page.context().close();
};

try {
  // Sign in, at first with a wrong token; the gateway is killed and another goes on; consent to less than all.
  const p = await person();
  await p.goto(ask());
  check('who is not signed in is asked to', await heading(p) === 'Sign in', await p.content());
  check('the page says its language', await p.locator('html').getAttribute('lang') === 'en');
  await look(p, 'sign-in');
  await p.fill('#token', 'drb_pat_wrong'); await p.click('button[type=submit]');
  check('a wrong token is said to be wrong, in an alert', (await p.locator('[role=alert]').innerText()).includes('not valid'), await p.content());
  check('and the field is marked', await p.locator('#token').getAttribute('aria-invalid') === 'true');
  check('what was typed is not on the page', !(await p.content()).includes('drb_pat_wrong'));
  await look(p, 'sign-in-wrong');
  const killed = await crash(/^POST \/login$/);
  await p.fill('#token', about.token); await p.click('button[type=submit]');
  check('another instance goes on with the login', await heading(p) === 'Allow access?', await p.content());
  if (killed) check('it is another one', await soon(() => served(0, /^POST \/login$/).at(-1) !== killed), killed);
  check('the name of the client is shown as it is', (await p.locator('.client').innerText()).includes(`“${name}”`), await p.locator('.client').innerText());
  check('where it goes is shown', (await p.locator('dl').innerText()).includes(String(app.address().port)), await p.locator('dl').innerText());
  check('who is signed in is shown', (await p.locator('dl').innerText()).includes('alice'));
  await look(p, 'consent');
  const cookies = await p.context().cookies(P);
  check('cookies are for the server alone', cookies.length === 3 && cookies.every(c => c.httpOnly && c.sameSite === 'Lax' && c.path === '/'), cookies);
  await p.uncheck('input[value="mcp:write"]');
  await p.click('button[value=allow]');
  let got = await arrived(p);
  check('the browser arrives at the client, with a code, its state and the issuer', got.get('code') && got.get('state') === 'a state' && got.get('iss') === P, String(got));
  const r = await (await fetch(`${P}/token`, { method: 'POST', body: new URLSearchParams({ grant_type: 'authorization_code', client_id: client, code: got.get('code'), redirect_uri: back, code_verifier: verifier }) })).json();
  check('only what was ticked is granted', r.scope === 'mcp:read', r);

  // Deny; who is signed in is not asked again for that.
  await p.goto(ask());
  check('who is signed in is asked for consent only, and each time', await heading(p) === 'Allow access?');
  await p.click('button[value=deny]');
  got = await arrived(p);
  check('who denies is sent to the client with access_denied', got.get('error') === 'access_denied' && got.get('state') === 'a state' && got.get('iss') === P && !got.has('code'), String(got));
  await p.goto(ask());
  for (const box of await p.locator('input[type=checkbox]').all()) await box.uncheck();
  await p.click('button[value=allow]');
  check('who allows nothing has denied', (await arrived(p)).get('error') === 'access_denied');

  // A client that is answered elsewhere, and what can't work.
  await p.goto(ask({ client_id: elsewhere, redirect_uri: 'https://notes.example/callback' }));
  check('an address that nobody knows is warned of', (await p.locator('[role=alert]').innerText()).includes('not one of a known application') && (await p.locator('dl').innerText()).includes('notes.example'), await p.content());
  await look(p, 'consent-unlisted');
  await p.goto(ask({ redirect_uri: 'http://localhost:1/<script>alert(1)</script>' }));
  check('a redirect that is not registered is shown and not followed', new URL(p.url()).host === new URL(P).host && (await p.locator('code').innerText()).includes('<script>') && await p.locator('a').count() === 0, p.url());
  await look(p, 'error');
  await p.goto(ask({ client_id: 'c_unknown' }));
  check('a client that is not known is told what to do', (await p.locator('[role=alert]').innerText()).includes('add it again'));
  await p.goto(ask());
  await p.click('button[value=switch]');
  check('who is somebody else can sign in', await heading(p) === 'Sign in', await p.content());

  // With the keyboard alone.
  const k = await person();
  await k.goto(ask());
  const focused = () => k.evaluate(() => { const e = document.activeElement; return e.id || e.value || e.tagName; });
  check('the field has the focus at once', await k.waitForFunction(() => document.activeElement?.id === 'token', null, { timeout: 5000 }).catch(() => false));
  await k.keyboard.type(about.token); await k.keyboard.press('Enter');
  await k.waitForSelector('button[value=allow]');
  const order = [];
  for (let n = 0; n < 7; n++) { await k.keyboard.press('Tab'); order.push(await focused()); }
  check('Tab goes through all there is, in the order in which it is read', order.join() === 'mcp:read,mcp:write,switch,A,A,allow,deny', order.join());
  check('where the focus is can be seen', await k.evaluate(() => getComputedStyle(document.activeElement).outlineStyle) === 'solid');
  await k.screenshot({ path: `${SHOTS}/consent-focus.png`, fullPage: true });
  await k.keyboard.press('Shift+Tab'); await k.keyboard.press('Enter');
  check('Enter on a button presses it', (await arrived(k)).get('code'));
  await k.goto(ask());
  await k.keyboard.press('Tab'); await k.keyboard.press('Enter');
  await k.waitForURL(u => !u.href.includes('/authorize'));
  check('Enter on a box does not sign anybody out', new URL(k.url()).searchParams.get('code') && k.url().startsWith(back), k.url());

  // In German.
  const d = await person('de-CH');
  await d.goto(ask());
  check('in German', await heading(d) === 'Anmelden' && await d.locator('html').getAttribute('lang') === 'de');
  await look(d, 'de-sign-in');
  await d.fill('#token', about.token); await d.click('button[type=submit]');
  check('consent in German', await heading(d) === 'Zugriff erlauben?', await d.content());
  await look(d, 'de-consent');
  await d.goto(ask({ client_id: 'c_unknown' }));
  await look(d, 'de-error');

  // A client that is a web page, from another origin: all that it needs it may read.
  const w = await person();
  await w.goto(back);
  const page = await w.evaluate(async ({ P, back }) => {
    const said = {}, version = { 'mcp-protocol-version': '2025-11-25' };
    const post = (headers = {}) => fetch(`${P}/mcp`, { method: 'POST', headers: { 'content-type': 'application/json', accept: 'application/json, text/event-stream', ...headers }, body: JSON.stringify({ jsonrpc: '2.0', id: 1, method: 'initialize', params: { protocolVersion: '2025-11-25', capabilities: {}, clientInfo: { name: 'page', version: '1' } } }) });
    const first = await post(version);
    said.status = first.status; said.challenge = first.headers.get('www-authenticate');
    const resource = await (await fetch(/resource_metadata="([^"]*)"/.exec(said.challenge ?? '')?.[1] ?? `${P}/.well-known/oauth-protected-resource/mcp`, { headers: version })).json();
    const server = await (await fetch(`${resource.authorization_servers[0]}/.well-known/oauth-authorization-server`, { headers: version })).json();
    said.resource = resource.resource; said.issuer = server.issuer;
    said.client = (await (await fetch(server.registration_endpoint, { method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify({ client_name: 'A page', redirect_uris: [back] }) })).json()).client_id;
    return { ...said, token_endpoint: server.token_endpoint };
  }, { P, back }).catch(e => ({ error: String(e) }));
  check('a web page of another origin reads challenge and metadata, and registers', page.status === 401 && page.challenge?.includes('resource_metadata') && page.resource === `${P}/mcp` && page.issuer === P && page.client?.startsWith('c_'), page);
  await w.goto(ask({ client_id: page.client }));
  await w.fill('#token', about.token); await w.click('button[type=submit]'); await w.click('button[value=allow]');
  got = await arrived(w);
  const used = await w.evaluate(async ({ P, back, page, code, verifier }) => {
    const t = await (await fetch(page.token_endpoint, { method: 'POST', body: new URLSearchParams({ grant_type: 'authorization_code', client_id: page.client, code, redirect_uri: back, code_verifier: verifier }) })).json();
    const send = (body, more = {}) => fetch(`${P}/mcp`, { method: 'POST', headers: { authorization: `Bearer ${t.access_token}`, 'content-type': 'application/json', accept: 'application/json, text/event-stream', ...more }, body: JSON.stringify(body) });
    const hello = await send({ jsonrpc: '2.0', id: 1, method: 'initialize', params: { protocolVersion: '2025-11-25', capabilities: {}, clientInfo: { name: 'page', version: '1' } } });
    const session = hello.headers.get('mcp-session-id');
    const list = await send({ jsonrpc: '2.0', id: 2, method: 'tools/list', params: {} }, { 'mcp-session-id': session, 'mcp-protocol-version': '2025-11-25', 'last-event-id': 'x' });
    const meta = { 'io.modelcontextprotocol/protocolVersion': '2026-07-28', 'io.modelcontextprotocol/clientInfo': { name: 'page', version: '1' }, 'io.modelcontextprotocol/clientCapabilities': {} };
    const modern = await send({ jsonrpc: '2.0', id: 3, method: 'tools/list', params: { _meta: meta } }, { 'mcp-protocol-version': '2026-07-28', 'mcp-method': 'tools/list' });
    return { hello: hello.status, session: !!session, list: list.status, tools: (await list.text()).includes('whoami'), modern: modern.status };
  }, { P, back, page, code: got.get('code'), verifier }).catch(e => ({ error: String(e) }));
  check('and gets a token, opens a session and lists tools in both eras', used.hello === 200 && used.session && used.list === 200 && used.tools && used.modern === 200, used);
  const refused = await w.evaluate(P => fetch(`${P}/token`, { method: 'POST', body: 'grant_type=x' }).then(r => r.json()).then(j => j.error), P);
  check('an error of the token endpoint is readable too', ['unsupported_grant_type', 'invalid_client', 'invalid_request'].includes(refused), refused);

  await connecting({ locale: 'en-GB', user: 'alice', era: 'legacy', prefix: '', other: about.tokens.bob });
  await connecting({ locale: 'de-CH', user: 'bob', era: 'modern', prefix: 'de-', other: about.tokens.alice });

  // Twice as large letters.
  await d.goto(ask({ client_id: elsewhere, redirect_uri: 'https://notes.example/callback' }));
  await d.setViewportSize({ width: 320, height: 600 });
  await d.evaluate(() => { document.documentElement.style.fontSize = '200%'; });
  check('with letters twice as large on 320 pixels nothing sticks out', await d.evaluate(() => document.documentElement.scrollWidth <= 320));
  await d.screenshot({ path: `${SHOTS}/de-consent-large.png`, fullPage: true });
  check('the browser has blocked nothing', complaints.length === 0, complaints);
} catch (e) { check('all of it', false, e.stack); }
await browser.close();
app.close();
const over = new Promise(r => child.removeAllListeners('exit').on('exit', r));
child.kill(); await over;
console.log(`${passed} passed, ${failed} failed`);
process.exit(failed ? 1 : 0);
