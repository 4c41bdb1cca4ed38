// The official openai package for JavaScript against a running server: each feature as its own documentation calls it.
//
//   node openai_js_test.mjs http://127.0.0.1:PORT       (tests/http/run.sh openai_js starts the server)
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

// The package lies where run.sh has put it, not beside this file.
const require = createRequire(`${process.cwd()}/`);
const OpenAI = require("openai");

const base = process.argv[2];
const sample = JSON.parse(readFileSync(new URL("../../deploy/demo-model/samples.json", import.meta.url))).samples[0];
const { messages } = sample;
const expected = sample.outputs.pirate.text;
const client = new OpenAI({ baseURL: `${base}/v1`, apiKey: "none", maxRetries: 0 });

const tools = [{ type: "function", function: { name: "add", description: "Adds.", parameters: { type: "object",
  properties: { x: { type: "integer", minimum: 0, maximum: 9 } }, required: ["x"], additionalProperties: false } } }];
const forced = { type: "function", function: { name: "add" } };

const checks = {
  async models() {
    const ids = [];
    for await (const model of client.models.list()) ids.push(model.id);
    assert.deepEqual(ids.sort(), ["base", "pirate", "shout"]);
    assert.equal((await client.models.retrieve("pirate")).id, "pirate");
    await assert.rejects(client.models.retrieve("nobody"), (error) => error instanceof OpenAI.NotFoundError && error.code === "model_not_found");
  },

  async chat() {
    const answer = await client.chat.completions.create({ model: "pirate", messages, temperature: 0 });
    assert.equal(answer.choices[0].message.content, expected);
    assert.equal(answer.choices[0].finish_reason, "stop");
    assert.equal(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens);
    const several = await client.chat.completions.create({ model: "base", messages, n: 3, max_tokens: 5, seed: 4, temperature: 1, logprobs: true, top_logprobs: 2 });
    assert.deepEqual(several.choices.map((choice) => choice.index), [0, 1, 2]);
    assert.ok(several.choices.every((choice) => choice.logprobs.content.every((token) => token.top_logprobs.length === 2)));
  },

  async streams() {
    const stream = await client.chat.completions.create({ model: "pirate", messages, temperature: 0, stream: true, stream_options: { include_usage: true } });
    let text = "", usage;
    for await (const chunk of stream) {
      text += chunk.choices[0]?.delta?.content ?? "";
      usage = chunk.usage ?? usage;
    }
    assert.equal(text, expected);
    assert.equal(usage.completion_tokens, sample.outputs.pirate.ids.length);
    const runner = client.chat.completions.stream({ model: "pirate", messages, temperature: 0 });
    assert.equal(await runner.finalContent(), expected);
    // A client that leaves in the middle.
    const cut = await client.chat.completions.create({ model: "base", messages, temperature: 0, stream: true, max_tokens: 500, ignore_eos: true });
    for await (const chunk of cut) { if (chunk) break; }
    assert.equal(cut.controller.signal.aborted, true);
  },

  async completions() {
    const answer = await client.completions.create({ model: "base", prompt: ["a", "b"], max_tokens: 3, echo: true, logprobs: 1 });
    assert.deepEqual(answer.choices.map((choice) => choice.index), [0, 1]);
    assert.ok(answer.choices[1].text.startsWith("b"));
    let text = "";
    for await (const chunk of await client.completions.create({ model: "base", prompt: sample.prompt, temperature: 0, max_tokens: 64, stream: true })) text += chunk.choices[0].text;
    assert.equal(text, sample.outputs.base.text);
  },

  async tools() {
    const answer = await client.chat.completions.create({ model: "base", messages, tools, tool_choice: forced, temperature: 0, max_tokens: 100 });
    const call = answer.choices[0].message.tool_calls[0];
    assert.equal(call.function.name, "add");
    const { x } = JSON.parse(call.function.arguments);
    assert.ok(Number.isInteger(x) && x >= 0 && x <= 9);
    const stream = client.chat.completions.stream({ model: "base", messages, tools, tool_choice: forced, temperature: 0, max_tokens: 100 });
    const final = await stream.finalChatCompletion();
    assert.equal(final.choices[0].message.tool_calls[0].function.arguments, call.function.arguments);
    const history = [...messages, answer.choices[0].message, { role: "tool", tool_call_id: call.id, content: "7" }];
    const after = await client.chat.completions.create({ model: "base", messages: history, tools, max_tokens: 8 });
    assert.equal(after.choices.length, 1);
  },

  async structuredOutputs() {
    const schema = { type: "object", properties: { name: { type: "string", maxLength: 8 }, yes: { type: "boolean" } }, required: ["name", "yes"], additionalProperties: false };
    const answer = await client.chat.completions.parse({ model: "base", messages, max_tokens: 80,
      response_format: { type: "json_schema", json_schema: { name: "answer", strict: true, schema } } });
    const value = answer.choices[0].message.parsed ?? JSON.parse(answer.choices[0].message.content);
    assert.deepEqual(Object.keys(value).sort(), ["name", "yes"]);
    assert.equal(typeof value.yes, "boolean");
    const object = await client.chat.completions.create({ model: "json", messages, max_tokens: 200, response_format: { type: "json_object" } }).catch((error) => error);
    assert.equal(object.status, 404);
  },

  async responses() {
    const answer = await client.responses.create({ model: "pirate", input: messages, temperature: 0 });
    assert.equal(answer.output_text, expected);
    let text = "";
    for await (const event of await client.responses.create({ model: "pirate", input: messages, temperature: 0, stream: true })) {
      if (event.type === "response.output_text.delta") text += event.delta;
    }
    assert.equal(text, expected);
  },

  async embeddings() {
    // The package asks for base64 and decodes it itself, unless it is told otherwise.
    const asked = { model: "pirate", input: ["one text", "another"] };
    const decoded = await client.embeddings.create(asked);
    const plain = await client.embeddings.create({ ...asked, encoding_format: "float" });
    assert.equal(decoded.data.length, 2);
    decoded.data.forEach(({ embedding }, i) => {
      assert.equal(embedding.length, plain.data[i].embedding.length);
      embedding.forEach((value, j) => assert.ok(Math.abs(value - plain.data[i].embedding[j]) < 1e-6));
    });
    assert.ok(decoded.usage.prompt_tokens > 0);
  },

  async training() {
    const lines = Array.from({ length: 24 }, (_, i) => JSON.stringify({ messages: [
      { role: "user", content: `Say ${i % 6}.` }, { role: "assistant", content: `LOUD ${i % 6}!` }] }) + "\n").join("");
    const file = await client.files.create({ file: await OpenAI.toFile(Buffer.from(lines), "chats.jsonl"), purpose: "fine-tune" });
    assert.deepEqual([file.bytes, file.filename, file.status], [Buffer.byteLength(lines), "chats.jsonl", "processed"]);
    assert.equal(await (await client.files.content(file.id)).text(), lines);
    const hyperparameters = { n_epochs: 2, batch_size: 8, learning_rate_multiplier: "auto" };
    let job = await client.fineTuning.jobs.create({ model: "base", training_file: file.id, suffix: "js", seed: 1,
      method: { type: "supervised", supervised: { hyperparameters } }, metadata: { team: "js" } });
    assert.equal(job.object, "fine_tuning.job");
    while (["validating_files", "queued", "running"].includes(job.status)) {
      await new Promise((resolve) => setTimeout(resolve, 200));
      job = await client.fineTuning.jobs.retrieve(job.id);
    }
    assert.equal(job.status, "succeeded", JSON.stringify(job.error));
    assert.deepEqual([job.fine_tuned_model, job.hyperparameters.n_epochs, job.hyperparameters.batch_size], ["js", 2, 8]);
    const messages_of_events = [], losses = [];
    for await (const event of client.fineTuning.jobs.listEvents(job.id, { limit: 4 })) {
      messages_of_events.push(event.message);
      if (event.type === "metrics" && event.data.train_loss !== undefined) losses.unshift(event.data.train_loss);
    }
    assert.equal(messages_of_events[0], "The job has successfully completed");
    assert.equal(messages_of_events.at(-1), `Created fine-tuning job: ${job.id}`);
    assert.ok(losses.length > 1 && losses.at(-1) < losses[0], `losses ${losses}`);
    const checkpoints = [];
    for await (const checkpoint of client.fineTuning.jobs.checkpoints.list(job.id)) checkpoints.push(checkpoint.step_number);
    assert.ok(checkpoints.length > 0 && checkpoints.every((step) => step > 0));
    const answer = await client.chat.completions.create({ model: job.fine_tuned_model, messages, temperature: 0, max_tokens: 8 });
    assert.equal(answer.model, "js");
    const long = await client.fineTuning.jobs.create({ model: "base", training_file: file.id, suffix: "js-long", hyperparameters: { n_epochs: 50, batch_size: 1 } });
    assert.equal((await client.fineTuning.jobs.cancel(long.id)).status, "cancelled");
    await assert.rejects(client.fineTuning.jobs.create({ model: "base", training_file: file.id, method: { type: "dpo" } }),
      (error) => error instanceof OpenAI.BadRequestError && error.message.includes("dpo"));
    assert.equal((await client.files.delete(file.id)).deleted, true);
  },

  async errors() {
    await assert.rejects(client.chat.completions.create({ model: "base", messages, temperature: 9 }),
      (error) => error instanceof OpenAI.BadRequestError && error.param === "temperature" && error.code === "invalid_request");
    await assert.rejects(client.chat.completions.create({ model: "base", messages: [] }), (error) => error.status === 400 && error.param === "messages");
    const raw = await client.chat.completions.create({ model: "base", messages, max_tokens: 1, misspelt: 1 }).asResponse();
    assert.equal(raw.headers.get("x-lorad-ignored-fields"), "misspelt");
  },
};

for (const [name, check] of Object.entries(checks)) {
  await check();
  console.log(`ok ${name}`);
}
console.log("openai for JavaScript: passed");
