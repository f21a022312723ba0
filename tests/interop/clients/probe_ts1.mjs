// Probes a server with the TypeScript SDK 1.x.  SPEC=FILE node probe_ts1.mjs http|sse URL  |  stdio COMMAND [ARGS...]
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { SSEClientTransport } from '@modelcontextprotocol/sdk/client/sse.js';
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js';
import * as t from '@modelcontextprotocol/sdk/types.js';
import { answers, run, seen } from './features.mjs';

const [kind, where, ...args] = process.argv.slice(2);
const c = new Client({ name: 'probe-ts1', version: '1' }, { capabilities: { elicitation: {}, sampling: {}, roots: { listChanged: true } } });
c.setRequestHandler(t.ElicitRequestSchema, answers.elicit);
c.setRequestHandler(t.CreateMessageRequestSchema, answers.sample);
c.setRequestHandler(t.ListRootsRequestSchema, answers.roots);
c.setNotificationHandler(t.LoggingMessageNotificationSchema, () => { seen.logs++; });
c.setNotificationHandler(t.ResourceUpdatedNotificationSchema, () => { seen.updated++; });
c.setNotificationHandler(t.ToolListChangedNotificationSchema, () => { seen.changed++; });
const transport = kind === 'stdio' ? new StdioClientTransport({ command: where, args, env: process.env, stderr: 'ignore' })
  : kind === 'sse' ? new SSEClientTransport(new URL(where)) : new StreamableHTTPClientTransport(new URL(where));
await run({
  c, era: () => 'legacy', version: () => transport.protocolVersion ?? transport._protocolVersion,
  connect: () => c.connect(transport),
  call: (name, a = {}, { meta, ...o } = {}) => c.callTool({ name, arguments: a, ...(meta && { _meta: meta }) }, undefined, o),
  raw: (of, cursor) => c.request({ method: `${of}/list`, params: cursor ? { cursor } : {} }, { tools: t.ListToolsResultSchema, resources: t.ListResourcesResultSchema, prompts: t.ListPromptsResultSchema }[of]),
  close: async () => { await transport.terminateSession?.(); await c.close(); }
});
