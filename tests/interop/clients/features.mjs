// The feature probes, over either TypeScript SDK. SPEC says what the server offers: {feature: parameters} (see matrix.py).
// An adapter gives: connect(), close(), era() and call(name, args, options), and the SDK's client as c.
import { readFileSync } from 'node:fs';

const pause = ms => new Promise(r => setTimeout(r, ms));
const flat = x => JSON.stringify(x ?? null);
function must(ok, why) { if (!ok) throw new Error(why); }
const holds = (x, want) => must(want === undefined || flat(x).includes(flat(want).slice(1, -1)), `no ${want} in ${flat(x).slice(0, 160)}`);
async function until(ok, why, ms = 5000) { for (const end = Date.now() + ms; !ok(); await pause(20)) must(Date.now() < end, why); }

// What the client saw and was asked; the adapters' handlers fill it.
export const seen = { logs: 0, updated: 0, changed: 0, elicit: 0, sample: 0, roots: 0 };
const value = p => p.default ?? p.enum?.[0] ?? p.oneOf?.[0]?.const ?? { boolean: true, integer: 1, number: 1, array: [] }[p.type] ?? (p.format === 'email' ? 'x@example.com' : 'x');
export const answers = {
  elicit: async r => { seen.elicit++; return { action: 'accept', content: Object.fromEntries(Object.entries(r.params.requestedSchema?.properties ?? {}).map(([k, p]) => [k, value(p)])) }; },
  sample: async () => { seen.sample++; return { role: 'assistant', model: 'none', content: { type: 'text', text: 'pong' } }; },
  roots: async () => { seen.roots++; return { roots: [{ uri: process.env.ROOT ?? 'file:///interop-root', name: 'interop-root' }] }; }
};
const pages = { tools: 'listTools', resources: 'listResources', prompts: 'listPrompts' };

const probes = {
  async tools(a, s) { const { tools } = await a.c.listTools(); must(tools.length >= (s.min ?? 1), `${tools.length} tools`); must(!s.has || tools.some(t => t.name === s.has), `no tool ${s.has}`); },
  async call(a, s) { holds((await a.call(s.tool, s.args)).content, s.expect); },
  async structured(a, s) { holds((await a.call(s.tool, s.args)).structuredContent, s.expect); },
  async content(a, s) { const types = (await a.call(s.tool, s.args)).content.map(x => x.type); for (const t of s.types) must(types.includes(t), `no ${t} in ${types}`); },
  async big(a, s) { const n = (await a.call(s.tool, s.args)).content[0].text.length; must(n === s.length, `${n} characters`); },
  async toolerror(a, s) { must((await a.call(s.tool, s.args)).isError === true, 'isError is not set'); },
  async badtool(a) {
    const r = await a.call('no_such_tool_here', {}).catch(e => e);
    must(r instanceof Error ? /\d/.test(String(r.code)) : r.isError, `answered ${flat(r).slice(0, 100)}`);
    await a.c.listTools();                                             // the connection still serves
  },
  async resources(a, s) {
    const { resources } = await a.c.listResources();
    must(resources.some(r => r.uri === s.has), `no resource ${s.has}`);
    holds(await a.c.readResource({ uri: s.has }), s.expect);
  },
  async templates(a, s) {
    const { resourceTemplates } = await a.c.listResourceTemplates();
    must(resourceTemplates.some(t => t.uriTemplate === s.has), `no template ${s.has}`);
    holds(await a.c.readResource({ uri: s.uri }), s.expect);
  },
  async prompts(a, s) {
    const { prompts } = await a.c.listPrompts();
    must(prompts.some(p => p.name === s.has), `no prompt ${s.has}`);
    holds(await a.c.getPrompt({ name: s.has, arguments: s.args }), s.expect);
  },
  async complete(a, s) { holds((await a.c.complete({ ref: s.ref, argument: s.argument })).completion.values, s.expect); },
  async ping(a) { if (a.era() === 'modern') return 'n/a'; await a.c.ping(); },
  async pages(a, s) {                                                  // walks the cursors by hand
    const raw = cursor => a.raw(s.of, cursor);
    let n = 0, rounds = 0, cursor;
    do { const r = await raw(cursor); n += r[s.of].length; rounds++; cursor = r.nextCursor; } while (cursor && rounds < 50);
    must(n >= s.min && rounds > 1, `${n} in ${rounds} pages`);
  },
  async progress(a, s) { let n = 0; await a.call(s.tool, s.args, { onprogress: () => { n++; } }); must(n >= s.min, `${n} progress notifications`); },
  async cancel(a, s) {
    const count = async () => s.counter && JSON.parse((await a.call(s.counter.tool, {})).content[0].text)[s.counter.field];
    const before = await count(), stop = new AbortController();
    const call = a.call(s.tool, s.args, { signal: stop.signal }).then(() => 'answered', () => 'cancelled');
    await pause(500); stop.abort('enough');
    must(await call === 'cancelled', 'the call was answered');
    if (!s.counter) { await a.c.listTools(); return; }
    for (const end = Date.now() + 5000; await count() <= before; await pause(100)) must(Date.now() < end, 'the server was not told');
  },
  async logging(a, s) {
    if (a.era() !== 'modern') await a.c.setLoggingLevel('debug');
    const n = seen.logs;
    await a.call(s.tool, s.args, a.era() === 'modern' ? { meta: { 'io.modelcontextprotocol/logLevel': 'debug' } } : {});
    await until(() => seen.logs - n >= s.min, `${seen.logs - n} log messages`);
  },
  ...Object.fromEntries(['elicit', 'sample', 'roots'].map(k => [k, async (a, s) => {
    const n = seen[k], r = await a.call(s.tool, s.args);
    must(seen[k] > (s.early ? 0 : n), `not asked; ${flat(r.content).slice(0, 120)}`); holds(r.content, s.expect);
  }])),
  async subscribe(a, s) {
    const n = seen.updated;
    const sub = a.era() === 'modern' ? await a.c.listen({ resourceSubscriptions: [s.uri] }) : await a.c.subscribeResource({ uri: s.uri });
    await a.call(s.touch, {});
    await until(() => seen.updated > n, 'no notifications/resources/updated');
    if (sub?.close) await sub.close(); else await a.c.unsubscribeResource({ uri: s.uri });
  },
  async changed(a, s) {
    const n = seen.changed, sub = a.era() === 'modern' && await a.c.listen({ toolsListChanged: true });
    await a.call(s.touch, {});
    await until(() => seen.changed > n, 'no notifications/tools/list_changed');
    if (sub) await sub.close();
  }
};

// Prints {"connect": ..., feature: "ok" | "n/a" | "FAIL: why", ..., "version": ...} and ends the process.
export async function run(adapter) {
  const spec = JSON.parse(readFileSync(process.env.SPEC, 'utf8')), out = {};
  const attempt = async (name, f) => {
    let t; const late = new Promise((_, no) => { t = setTimeout(() => no(new Error('no answer in 15 s')), 15000); });
    try { out[name] = (await Promise.race([f(), late])) === 'n/a' ? 'n/a' : 'ok'; } catch (e) { out[name] = `FAIL: ${e.code ?? ''} ${String(e.message ?? e).slice(0, 200)}`; }
    clearTimeout(t);
  };
  await attempt('connect', () => adapter.connect());
  if (out.connect === 'ok') {
    out.version = adapter.version();
    for (const name of Object.keys(probes)) if (spec[name]) await attempt(name, () => probes[name](adapter, spec[name])); else out[name] = 'n/a';
    await attempt('close', () => adapter.close());
  }
  console.log(JSON.stringify(out));
  process.exit(0);
}
