// The official Node client against a proxy: node chat.mjs BASE_URL MODE MODEL...   (MODE: plain | raw | stream | tools)
// One JSON line a model: what an application sees. `ran` is what runTools ran.
import OpenAI from 'openai';

const [baseURL, mode, ...models] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey: 'sk-test', maxRetries: 0, logLevel: 'off' });

const schemas = {
  get_weather: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'], additionalProperties: false },
  get_time: { type: 'object', properties: { tz: { type: 'string' }, at: { type: 'integer' } }, required: ['tz'], additionalProperties: false },
};

const calls = message => (message.tool_calls ?? []).map(c => [c.id, c.function.name, c.function.arguments]);

const modes = {
  async plain(request, seen) {
    const reply = await client.chat.completions.create(request);
    const [choice] = reply.choices;
    Object.assign(seen, { content: choice.message.content ?? '', finish: choice.finish_reason, calls: calls(choice.message), report: reply.wholecall ?? null });
  },
  async raw(request, seen) {
    const parts = [];
    try {
      for await (const chunk of await client.chat.completions.create({ ...request, stream: true })) {
        seen.report ??= chunk.wholecall ?? null;
        for (const { delta, finish_reason } of chunk.choices) {
          seen.content += delta.content ?? '';
          seen.finish = finish_reason ?? seen.finish;
          for (const c of delta.tool_calls ?? []) {
            const part = (parts[c.index] ??= ['', '', '']);
            [c.id, c.function?.name, c.function?.arguments].forEach((text, i) => { part[i] += text ?? ''; });
          }
        }
      }
    } finally {
      seen.calls = parts;
    }
  },
  async stream(request, seen) {
    const stream = client.chat.completions.stream(request);
    stream.on('content', text => { seen.content += text; });
    stream.on('tool_calls.function.arguments.done', e => seen.done.push([e.index, e.name, e.arguments]));
    const reply = await stream.finalChatCompletion();
    const [choice] = reply.choices;
    Object.assign(seen, { finish: choice.finish_reason, calls: calls(choice.message), report: reply.wholecall ?? null });
  },
  async tools(request, seen) {
    const tools = request.tools.map(({ type, function: declared }) => ({
      type,
      function: { ...declared, parse: JSON.parse, function: given => { seen.ran.push([declared.name, given]); return 'ok'; } },
    }));
    const runner = client.chat.completions.runTools({ ...request, tools, stream: true }, { maxChatCompletions: 1 });
    runner.on('content', text => { seen.content += text; });
    runner.on('chatCompletion', reply => { seen.finish = reply.choices[0].finish_reason; seen.calls = calls(reply.choices[0].message); });
    await runner.done();
  },
};

for (const model of models) {
  const seen = { model, content: '', finish: null, calls: [], done: [], ran: [], report: null, error: null };
  const tools = Object.entries(schemas).map(([name, parameters]) => ({ type: 'function', function: { name, parameters } }));
  try {
    await modes[mode]({ model, messages: [{ role: 'user', content: 'Weather in Paris, time in Tokyo?' }], tools }, seen);
  } catch (e) {
    seen.error = { status: e.status ?? null, code: e.code ?? null, type: e.type ?? null };
  }
  console.log(JSON.stringify(seen));
}
