#!/usr/bin/env node
// An OpenID Connect provider and OAuth 2.1 authorization server for tests (npm oidc-provider). Login and consent happen by
// themselves: whoever comes is the login_hint, or --user; `root` has the group `admin`, all others have `user`. With --ask
// there are pages for both: a field `user`, and buttons `allow` and `deny`.
//
//   node idp.mjs [--port 0] [--host 127.0.0.1] [--user alice] [--ttl 300] [--scopes "mcp:read mcp:write"]
//                [--client ID --secret SECRET --redirect URI ...]   a client with a secret, such as the gateway
//                [--ask] [--deny] [--resource URL ...] [--no-dcr] [--no-cimd] [--opaque]
// The first line on stdout is JSON: {"ready":true,"url":ISSUER,"issuer":...}. Keys are new at every start.
// GET /_test/set?user=root&deny=1&nonce=other&iss=other changes what it does from now on; what isn't named is as it was at
// the start. nonce=TEXT puts that nonce into ID tokens, iss=TEXT that issuer into redirects, iss=none leaves it out.
// GET /_test/log lists the requests.
import { createServer } from 'node:http';
import { generateKeyPairSync, randomUUID } from 'node:crypto';
import { parseArgs } from 'node:util';
import { Provider, errors } from 'oidc-provider';

const { values: o } = parseArgs({
  options: {
    port: { type: 'string', default: process.env.PORT ?? '0' }, host: { type: 'string', default: '127.0.0.1' },
    user: { type: 'string', default: 'alice' }, ttl: { type: 'string', default: '300' },
    client: { type: 'string' }, secret: { type: 'string' }, redirect: { type: 'string', multiple: true },
    resource: { type: 'string', multiple: true }, scopes: { type: 'string', default: 'mcp:read mcp:write' },
    ask: { type: 'boolean', default: false }, deny: { type: 'boolean', default: false }, opaque: { type: 'boolean', default: false },
    'no-dcr': { type: 'boolean', default: false }, 'no-cimd': { type: 'boolean', default: false }
  }
});
const ttl = Number(o.ttl);
const key = alg => {
  const { privateKey } = alg === 'RS256' ? generateKeyPairSync('rsa', { modulusLength: 2048 }) : generateKeyPairSync('ec', { namedCurve: 'P-256' });
  return { ...privateKey.export({ format: 'jwk' }), alg, use: 'sig', kid: randomUUID() };
};
const clients = [
  { client_id: 'machine', client_secret: 'machine-secret', grant_types: ['client_credentials'], redirect_uris: [], response_types: [], scope: o.scopes },
  { client_id: 'app', client_secret: 'app-secret', grant_types: ['authorization_code', 'refresh_token'], redirect_uris: ['http://127.0.0.1/callback'], response_types: ['code'], application_type: 'native' },
  { client_id: 'public', token_endpoint_auth_method: 'none', grant_types: ['authorization_code', 'refresh_token'], redirect_uris: ['http://127.0.0.1/callback'], response_types: ['code'], application_type: 'native' }
];
if (o.client) clients.push({ client_id: o.client, client_secret: o.secret, grant_types: ['authorization_code', 'refresh_token'], redirect_uris: o.redirect, response_types: ['code'] });
const page = (title, form) => `<!doctype html><html lang="en"><meta name="viewport" content="width=device-width"><title>${title}</title><h1>${title}</h1><form method="post">${form}<button name="answer" value="allow">Continue</button> <button name="answer" value="deny">Cancel</button></form>`;
const seen = [];
let now = {};                                          // what /_test/set asks for

const server = createServer();
server.listen(Number(o.port), o.host, () => {
  const issuer = `http://${o.host}:${server.address().port}`;
  const allowed = r => (o.resource?.length ? o.resource.includes(r) : /^https?:\/\//.test(r));
  const provider = new Provider(issuer, {
    clients,
    jwks: { keys: [key('RS256'), key('ES256')] },
    cookies: { keys: [randomUUID()] },
    scopes: ['openid', 'offline_access', 'email', 'profile', 'groups', ...o.scopes.split(' ')],
    claims: { openid: ['sub'], email: ['email', 'email_verified'], profile: ['name'], groups: ['groups'] },
    conformIdTokenClaims: false,
    responseTypes: ['code'],
    pkce: { required: () => true },
    rotateRefreshToken: true,
    issueRefreshToken: async (ctx, client, code) => client.grantTypeAllowed('refresh_token'),
    findAccount: async (ctx, id) => ({ accountId: id, claims: async () => ({ sub: id, name: id[0].toUpperCase() + id.slice(1), email: `${id}@example.test`, email_verified: true, groups: id === 'root' ? ['admin'] : ['user'] }) }),
    extraTokenClaims: async (ctx, token) => (token.accountId ? { groups: token.accountId === 'root' ? ['admin'] : ['user'] } : {}),
    ttl: { AccessToken: ttl, ClientCredentials: ttl, AuthorizationCode: 60, IdToken: ttl, RefreshToken: 86400, Interaction: 600, Session: 86400, Grant: 86400 },
    interactions: { url: (ctx, i) => `/interaction/${i.uid}` },
    clientBasedCORS: () => true,
    features: {
      devInteractions: { enabled: false },
      clientCredentials: { enabled: true },
      introspection: { enabled: true },
      revocation: { enabled: true },
      registration: { enabled: !o['no-dcr'] },
      registrationManagement: { enabled: !o['no-dcr'] },
      clientIdMetadataDocument: { enabled: !o['no-cimd'], ack: 'draft-02', allowFetch: async () => true, allowClient: async () => true },
      resourceIndicators: {
        enabled: true,
        useGrantedResource: async () => true,
        getResourceServerInfo: async (ctx, resource) => {
          if (!allowed(resource)) throw new errors.InvalidTarget();
          return { scope: o.scopes, audience: resource, accessTokenTTL: ttl, accessTokenFormat: o.opaque ? 'opaque' : 'jwt', jwt: { sign: { alg: 'RS256' } } };
        }
      }
    }
  });
  provider.proxy = true;
  provider.on('server_error', (ctx, e) => console.error('server_error', e.stack));
  for (const ev of ['authorization.error', 'grant.error', 'registration_create.error']) provider.on(ev, (ctx, e) => console.error(ev, e.message, e.error_description ?? ''));
  const handle = provider.callback();

  server.on('request', async (req, res) => {
    const path = req.url.split('?')[0];
    if (!path.startsWith('/_test')) seen.push(`${req.method} ${req.url}`);
    if (path === '/_test/log') { res.setHeader('content-type', 'application/json'); return res.end(JSON.stringify(seen)); }
    if (path === '/_test/set') { now = Object.fromEntries(new URL(req.url, issuer).searchParams); return res.end('ok'); }
    if (now.iss) {
      const writeHead = res.writeHead;
      res.writeHead = function (...a) {
        const to = this.getHeader('location');
        if (to?.includes('iss=')) {
          const u = new URL(to, issuer);
          if (now.iss === 'none') u.searchParams.delete('iss'); else u.searchParams.set('iss', now.iss);
          this.setHeader('location', u.href);
        }
        return writeHead.apply(this, a);
      };
    }
    if (path === '/auth' && req.method === 'GET') {
      if (now.nonce) { const u = new URL(req.url, issuer); u.searchParams.set('nonce', now.nonce); req.url = u.pathname + u.search; }
      // RFC 6749 3.3: a request without scope gets the default ones (oidc-provider would deny it).
      const u = new URL(req.url, issuer);
      if (!u.searchParams.get('scope')) { u.searchParams.set('scope', o.scopes); req.url = u.pathname + u.search; }
    }
    if (!path.startsWith('/interaction/')) return handle(req, res);
    try {
      const { prompt, params, session } = await provider.interactionDetails(req, res);
      let asked = new URLSearchParams();
      if (o.ask) {
        if (req.method !== 'POST') {
          res.setHeader('content-type', 'text/html');
          return res.end(prompt.name === 'login' ? page('Log in', '<p><label>User <input name="user" autofocus></label></p>') : page('Agree', `<p>${session.accountId} lets another service act.</p>`));
        }
        const parts = []; for await (const part of req) parts.push(part);
        asked = new URLSearchParams(Buffer.concat(parts).toString());
      }
      if (o.deny || now.deny || asked.get('answer') === 'deny') return await provider.interactionFinished(req, res, { error: 'access_denied', error_description: 'denied by the test' });
      if (prompt.name === 'login') return await provider.interactionFinished(req, res, { login: { accountId: now.user ?? (asked.get('user') || params.login_hint || o.user) } });
      const grant = new provider.Grant({ accountId: session.accountId, clientId: params.client_id });
      const { missingOIDCScope, missingResourceScopes } = prompt.details;
      if (missingOIDCScope) grant.addOIDCScope(missingOIDCScope.join(' '));
      for (const [r, s] of Object.entries(missingResourceScopes ?? {})) grant.addResourceScope(r, s.join(' '));
      await provider.interactionFinished(req, res, { consent: { grantId: await grant.save() } }, { mergeWithLastSubmission: true });
    } catch (e) { res.writeHead(500); res.end(e.stack); }
  });
  console.log(JSON.stringify({ ready: true, url: issuer, issuer, pid: process.pid, clients: Object.fromEntries(clients.map(c => [c.client_id, c.client_secret ?? null])) }));
});
for (const s of ['SIGINT', 'SIGTERM']) process.on(s, () => process.exit(0));
