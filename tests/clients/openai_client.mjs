// openai for Node. Runs in the folder that has it.
import { readFileSync } from "node:fs";
import assert from "node:assert/strict";
import OpenAI from "openai";

const version = JSON.parse(readFileSync(new URL("node_modules/openai/package.json", import.meta.url))).version;
const client = new OpenAI({ baseURL: process.env.THERMOCLINE_URL + "/v1", apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: "Tell me a story about a dog." }];
const limits = { model: "any", max_tokens: 24, temperature: 0 };
const parameters = { type: "object", properties: { city: { enum: ["Ulm", "Rome"] } }, required: ["city"], additionalProperties: false };
const tool = { type: "function", function: { name: "weather", parameters } };

const checks = {
  async "chat and stream agree"() {
    const whole = await client.chat.completions.create({ messages, ...limits });
    let text = "", usage;
    const stream = await client.chat.completions.create({ messages, stream: true, stream_options: { include_usage: true }, ...limits });
    for await (const chunk of stream) {
      text += chunk.choices[0]?.delta.content ?? "";
      usage = chunk.usage ?? usage;
    }
    assert.equal(text, whole.choices[0].message.content);
    assert.equal(usage.completion_tokens, 24);
  },
  async "agent loop with a forced call"() {
    const more = { ...limits, max_tokens: 100, tools: [tool] };
    const asked = await client.chat.completions.create({ messages, tool_choice: "required", ...more });
    const { message } = asked.choices[0];
    const call = message.tool_calls[0];
    assert.ok(["Ulm", "Rome"].includes(JSON.parse(call.function.arguments).city));
    const turns = [...messages, message, { role: "tool", tool_call_id: call.id, content: "blue" }];
    const answer = await client.chat.completions.create({ messages: turns, tool_choice: "none", ...more });
    assert.ok(answer.choices[0].message.content.trim());
  },
  async "schema is followed"() {
    const schema = { type: "json_schema", json_schema: { name: "place", strict: true, schema: parameters } };
    const answer = await client.chat.completions.parse({ messages, response_format: schema, ...limits, max_tokens: 100 });
    assert.ok(["Ulm", "Rome"].includes(JSON.parse(answer.choices[0].message.content).city));
  },
  async "aborted stream ends"() {
    const stream = await client.chat.completions.create({ messages, stream: true, ...limits, max_tokens: 400 });
    for await (const _ of stream) break;
    const after = await client.chat.completions.create({ messages, ...limits });
    assert.equal(after.usage.completion_tokens, 24);
  },
  async embeddings() {
    const found = await client.embeddings.create({ model: "any", input: ["The dog runs.", "Rain fell."] });
    assert.equal(found.data.length, 2);
    assert.ok(found.data[0].embedding.length > 8 && found.data[0].embedding.every(Number.isFinite));
  },
  async "errors have their classes"() {
    const wrong = client.chat.completions.create({ messages, ...limits, temperature: -1 });
    await assert.rejects(wrong, (error) => error instanceof OpenAI.BadRequestError && /temperature/.test(error.message));
  },
};

for (const [name, check] of Object.entries(checks)) {
  const line = `${"openai-node".padEnd(16)} ${version.padEnd(8)} ${name.padEnd(46)}`;
  try {
    await check();
    console.log(`${line} ok`);
  } catch (error) {
    console.log(`${line} FAILED: ${String(error).split("\n")[0]}`);
    console.error(error);
    process.exitCode = 1;
  }
}
