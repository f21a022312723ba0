// Probes a server with the TypeScript SDK 2.x.
//   SPEC=FILE ERA=legacy|auto|modern node probe_ts2.mjs http URL  |  stdio COMMAND [ARGS...]
import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { StdioClientTransport } from '@modelcontextprotocol/client/stdio';
import { answers, run, seen } from './features.mjs';

const [kind, where, ...args] = process.argv.slice(2);
const era = process.env.ERA ?? 'auto';
const c = new Client({ name: 'probe-ts2', version: '1' }, {
  versionNegotiation: { mode: era === 'modern' ? { pin: '2026-07-28' } : era },
  capabilities: { elicitation: { form: {} }, sampling: {}, roots: { listChanged: true } }
});
c.setRequestHandler('elicitation/create', answers.elicit);
c.setRequestHandler('sampling/createMessage', answers.sample);
c.setRequestHandler('roots/list', answers.roots);
c.setNotificationHandler('notifications/message', () => { seen.logs++; });
c.setNotificationHandler('notifications/resources/updated', () => { seen.updated++; });
c.setNotificationHandler('notifications/tools/list_changed', () => { seen.changed++; });
const transport = kind === 'stdio' ? new StdioClientTransport({ command: where, args, env: process.env, stderr: 'ignore' }) : new StreamableHTTPClientTransport(new URL(where));
await run({
  c, era: () => c.getProtocolEra(), version: () => c.getNegotiatedProtocolVersion(),
  connect: () => c.connect(transport),
  call: (name, a = {}, { meta, ...o } = {}) => c.callTool({ name, arguments: a, ...(meta && { _meta: meta }) }, o),
  raw: (of, cursor) => c.request({ method: `${of}/list`, params: cursor ? { cursor } : {} }),
  close: async () => { if (c.getProtocolEra() === 'legacy') await transport.terminateSession?.(); await c.close(); }
});
