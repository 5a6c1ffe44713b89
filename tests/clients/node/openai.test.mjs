// The OpenAI client for Node. A suite for each row of the table in docs/clients.md.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { afterEach, beforeEach, describe, test } from "node:test";
import { pathToFileURL } from "node:url";
import {
  atRest, counts, ERROR, fault, journal, metric, MODEL, noFaults, outstanding, PIXEL, REPLICA, REPLICAS, ROUTERS, running, until, words,
} from "./fleet.mjs";

// The libraries are kept elsewhere, and are looked for from there.
const require = createRequire(pathToFileURL(`${process.env.CLIENT_MODULES}/`));
const load = (name) => import(pathToFileURL(require.resolve(name)));
const { default: OpenAI } = await load("openai");
const { zodResponseFormat, zodTextFormat } = await load("openai/helpers/zod");
const { z } = await load("zod");

// No retries: a retry of the client would hide a failure of the router.
const connect = (router, more = {}) => new OpenAI({ baseURL: `${ROUTERS[router]}/v1`, apiKey: "unused", maxRetries: 0, timeout: 20_000, ...more });
const client = connect("main");
const user = (content) => [{ role: "user", content }];
const ask = (more = {}, options = {}, by = client) => by.chat.completions.create({ model: MODEL, messages: user("Hello."), max_tokens: 6, ...more }, options);
const count = (text) => text.trim().split(/\s+/).length;
const parameters = {
  type: "object",
  properties: { city: { type: "string", enum: ["Paris", "Rome"] }, days: { type: "integer", minimum: 1 } },
  required: ["city", "days"],
  additionalProperties: false,
};
const tool = { type: "function", function: { name: "get_weather", description: "Weather", parameters } };
const Solution = z.object({ steps: z.array(z.object({ explanation: z.string(), number: z.int() })), verdict: z.enum(["right", "wrong"]) });

async function gather(stream) {
  const all = [];
  for await (const item of stream) all.push(item);
  return all;
}

const deltas = (chunks) => chunks.flatMap((chunk) => chunk.choices.map((choice) => choice.delta.content).filter(Boolean));

// The replica that answered, by the router's header, which must be one of ours.
async function home(promise) {
  const { response } = await promise.withResponse();
  const replica = response.headers.get(REPLICA);
  assert.ok(replica in REPLICAS, replica);
  return replica;
}

// Exactly this error.
async function refused(kind, promise) {
  const error = await promise.then(() => assert.fail("it was answered"), (error) => error);
  assert.equal(error.constructor, kind, error.stack);
  return error;
}

let routed;
const seen = async () => (await Promise.all(Object.keys(ROUTERS).map((router) => metric("prefix_router_requests_total", {}, router)))).reduce((a, b) => a + b);
beforeEach(async () => {
  routed = await seen();
});
afterEach(async () => {
  await noFaults();
  await atRest();
  assert.ok((await seen()) > routed, "no router has seen a request");
});

describe("plain", () => {
  test("an answer", async () => {
    const before = await counts();
    const answer = await ask();
    assert.deepEqual([answer.object, answer.model, answer.choices[0].finish_reason], ["chat.completion", MODEL, "length"]);
    assert.equal(count(answer.choices[0].message.content), 6);
    assert.equal(answer.usage.completion_tokens, 6);
    assert.equal((await counts()).finished, before.finished + 1);
    assert.equal((await ask()).choices[0].message.content, answer.choices[0].message.content);
  });
});

describe("raw responses", () => {
  test("they show the router", async () => {
    const { data, response, request_id } = await ask().withResponse();
    assert.ok(response.headers.get(REPLICA) in REPLICAS);
    assert.equal(response.headers.get("x-prefix-router-reason"), "home");
    assert.ok(data.choices[0].message.content);
    const raw = await ask({ stream: true }).asResponse();
    assert.equal(raw.headers.get(REPLICA), response.headers.get(REPLICA));
    assert.ok((await raw.text()).endsWith("data: [DONE]\n\n"));
  });
});

describe("streaming", () => {
  test("deltas come one by one, and usage at the end", async () => {
    const more = { max_tokens: 60, ignore_eos: true };
    const whole = await ask(more);
    const chunks = [];
    const at = [];
    const start = performance.now();
    for await (const chunk of await ask({ ...more, stream: true, stream_options: { include_usage: true } })) {
      chunks.push(chunk);
      at.push(performance.now() - start);
    }
    assert.equal(deltas(chunks).length, 60);
    assert.equal(deltas(chunks).join(""), whole.choices[0].message.content);
    // As they are made, which takes 0.7 s; not all at the end.
    assert.ok(at.at(-1) - at[1] > 250, `${at}`);
    assert.deepEqual([chunks.at(-1).choices.length, chunks.at(-1).usage.completion_tokens], [0, 60]);
  });
  test("the helper", async () => {
    const stream = client.chat.completions.stream({ model: MODEL, messages: user("Hello.") });
    let text = "";
    stream.on("content", (delta) => (text += delta));
    const final = await stream.finalChatCompletion();
    assert.ok(count(text) > 10);
    assert.equal(text, final.choices[0].message.content);
  });
});

describe("multi-turn", () => {
  test("turns share a replica and its cache", async () => {
    const messages = [{ role: "system", content: words(900) }, ...user("Begin.")];
    const [homes, cached] = [[], []];
    for (let turn = 0; turn < 3; turn++) {
      const { data, response } = await ask({ messages, max_tokens: 20 }).withResponse();
      homes.push(response.headers.get(REPLICA));
      cached.push(data.usage.prompt_tokens_details.cached_tokens);
      messages.push({ role: "assistant", content: data.choices[0].message.content }, ...user(`Turn ${turn}.`));
    }
    assert.equal(new Set(homes).size, 1);
    assert.ok(cached[0] === 0 && cached[1] > 800 && cached[2] > cached[1], `${cached}`);
  });
});

describe("tools", () => {
  for (const tool_choice of ["auto", "required", { type: "function", function: { name: "get_weather" } }]) {
    test(`the whole loop, ${JSON.stringify(tool_choice)}`, async () => {
      const messages = user("Weather?");
      const { message } = (await ask({ messages, tools: [tool], tool_choice, max_tokens: 60 })).choices[0];
      assert.equal(message.tool_calls.length, 1);
      assert.equal(message.tool_calls[0].function.name, "get_weather");
      assert.equal(JSON.parse(message.tool_calls[0].function.arguments).city, "Paris");
      messages.push(message, { role: "tool", tool_call_id: message.tool_calls[0].id, content: "sunny" });
      const said = (await ask({ messages, tools: [tool] })).choices[0].message;
      assert.equal(count(said.content), 6);
    });
  }
  test("the helper that runs them", async () => {
    const asked = [];
    const get_weather = { name: "get_weather", parameters, parse: JSON.parse, function: (given) => asked.push(given) && "sunny" };
    const runner = client.chat.completions.runTools({
      model: MODEL, messages: user("Weather?"), tools: [{ type: "function", function: get_weather }],
    });
    assert.ok(count(await runner.finalContent()) > 5);
    assert.deepEqual(asked.map((given) => given.city), ["Paris"]);
  });
});

describe("streamed tools", () => {
  test("arguments come in parts", async () => {
    const chunks = await gather(await ask({ messages: user("Weather?"), tools: [tool], max_tokens: 60, stream: true }));
    const calls = chunks.flatMap((chunk) => chunk.choices.flatMap((choice) => choice.delta.tool_calls ?? []));
    const parts = calls.map((call) => call.function.arguments).filter(Boolean);
    assert.deepEqual(calls.map((call) => call.function.name).filter(Boolean), ["get_weather"]);
    assert.ok(parts.length > 1);
    assert.equal(JSON.parse(parts.join("")).city, "Paris");
    assert.equal(chunks.flatMap((chunk) => chunk.choices).at(-1).finish_reason, "tool_calls");
  });
});

describe("images", () => {
  for (const url of ["http://127.0.0.1:9/cat.png", `data:image/png;base64,${PIXEL}`]) {
    test(url.slice(0, 10), async () => {
      const answer = await ask({ messages: user([{ type: "text", text: "What?" }, { type: "image_url", image_url: { url } }]) });
      assert.ok(answer.usage.prompt_tokens > 200);
      assert.ok(answer.choices[0].message.content);
    });
  }
});

describe("structured output", () => {
  test("JSON mode", async () => {
    const answer = await ask({ response_format: { type: "json_object" }, max_tokens: 60 });
    assert.equal(typeof JSON.parse(answer.choices[0].message.content), "object");
  });
  test("zod", async () => {
    const parsed = await client.chat.completions.parse({
      model: MODEL, messages: user("Solve."), max_tokens: 100, response_format: zodResponseFormat(Solution, "solution"),
    });
    assert.equal(parsed.choices[0].message.parsed.verdict, "right");
    const response = await client.responses.parse({ model: MODEL, input: "Solve.", text: { format: zodTextFormat(Solution, "solution") } });
    assert.equal(response.output_parsed.verdict, "right");
  });
});

describe("embeddings", () => {
  test("base64 by default, and floats", async () => {
    const byDefault = await client.embeddings.create({ model: MODEL, input: ["one", "two"] });
    const floats = await client.embeddings.create({ model: MODEL, input: ["one", "two"], encoding_format: "float" });
    const [one, two] = byDefault.data.map((item) => [...item.embedding]);
    assert.ok(one.length > 10 && Math.abs(one.reduce((sum, value) => sum + value * value, 0) - 1) < 1e-3);
    assert.notDeepEqual(one, two);
    assert.ok(one.every((value, at) => Math.abs(value - floats.data[0].embedding[at]) < 1e-6));
  });
});

describe("completions", () => {
  test("whole and streamed", async () => {
    const request = { model: MODEL, prompt: "Once upon a time", max_tokens: 5 };
    const whole = await client.completions.create(request);
    assert.equal(count(whole.choices[0].text), 5);
    const chunks = await gather(await client.completions.create({ ...request, stream: true }));
    assert.equal(chunks.map((chunk) => chunk.choices[0].text).join(""), whole.choices[0].text);
  });
});

describe("responses", () => {
  test("plain and streamed", async () => {
    const request = { model: MODEL, input: "Hello.", max_output_tokens: 6 };
    const { data, response } = await client.responses.create(request).withResponse();
    assert.ok(response.headers.get(REPLICA) in REPLICAS);
    assert.deepEqual([data.status, count(data.output_text), data.usage.output_tokens], ["incomplete", 6, 6]);
    const events = await gather(await client.responses.create({ ...request, stream: true }));
    const texts = events.filter((event) => event.type === "response.output_text.delta").map((event) => event.delta);
    assert.equal(texts.length, 6);
    assert.equal(texts.join(""), data.output_text);
    assert.equal(events[0].type, "response.created");
  });
  test("tools", async () => {
    const request = { model: MODEL, tools: [{ type: "function", name: "get_weather", description: "Weather", parameters, strict: true }] };
    const input = user("Weather?");
    const answer = await client.responses.create({ ...request, input });
    const call = answer.output.find((item) => item.type === "function_call");
    assert.equal(JSON.parse(call.arguments).city, "Paris");
    const stream = client.responses.stream({ ...request, input });
    const parts = (await gather(stream)).filter((event) => event.type === "response.function_call_arguments.delta").map((event) => event.delta);
    assert.ok(parts.length > 1);
    assert.equal(parts.join(""), call.arguments);
    const said = await client.responses.create({ ...request, input: [...input, call, { type: "function_call_output", call_id: call.call_id, output: "sunny" }] });
    assert.ok(count(said.output_text) > 5);
  });
});

describe("models", () => {
  test("list", async () => {
    assert.deepEqual((await gather(client.models.list())).map((model) => model.id), [MODEL]);
  });
});

describe("identifiers", () => {
  test("they place alike", async () => {
    const names = Array.from({ length: 12 }, (_, n) => `tenant-${n}`);
    const [byField, byHeader] = [[], []];
    for (const name of names) {
      byField.push(await home(ask({ max_tokens: 1, prompt_cache_key: name })));
      byHeader.push(await home(ask({ max_tokens: 1 }, { headers: { "X-Amzn-SageMaker-Prefix-Aware-Id": name } })));
    }
    assert.deepEqual(byField, byHeader);
    assert.equal(new Set(byField).size, 3);
  });
});

describe("async", () => {
  test("many at once", async () => {
    const answers = await Promise.all(Array.from({ length: 24 }, (_, n) => ask({ messages: user(`${n}`), max_tokens: 3 })));
    assert.ok(new Set(answers.map((answer) => answer.choices[0].message.content)).size > 12);
  });
});

describe("errors", () => {
  test("unknown model", async () => {
    const theirs = await refused(OpenAI.NotFoundError, ask({ model: "no-such-model" }));
    assert.match(theirs.message, /no-such-model/);
    assert.ok(theirs.headers.get(REPLICA) in REPLICAS && theirs.headers.get(ERROR) === null);
    const ours = await refused(OpenAI.NotFoundError, ask({ model: "no-such-model", stream: true }, {}, connect("nobody")));
    assert.deepEqual([ours.code, ours.headers.get(ERROR), ours.param], ["model_not_found", "model_not_found", "model"]);
  });
  test("bad requests", async () => {
    assert.match((await refused(OpenAI.BadRequestError, ask({ temperature: -1 }))).message, /temperature/);
    const error = await refused(OpenAI.BadRequestError, ask({}, { headers: { "X-Amzn-SageMaker-Prefix-Aware-Id": "x".repeat(65) } }));
    assert.deepEqual([error.status, error.code, error.type], [400, "bad_identifier", "invalid_request_error"]);
  });
  test("path not exposed", async () => {
    const error = await refused(OpenAI.PermissionDeniedError, client.post("/load_lora_adapter", { body: {} }));
    assert.equal(error.code, "path_not_exposed");
  });
  test("busy and broken", async () => {
    await fault({ fault: "status", status: 429, retry_after: "7" });
    const before = (await counts()).received;
    assert.equal((await refused(OpenAI.RateLimitError, ask())).headers.get("retry-after"), "7");
    assert.equal((await counts()).received, before + 3);
    await noFaults();
    await fault({ fault: "status", status: 503 });
    assert.equal((await refused(OpenAI.InternalServerError, ask({ stream: true }))).status, 503);
    await noFaults();
    await fault({ fault: "reset", at: "connect" });
    const error = await refused(OpenAI.InternalServerError, ask());
    assert.deepEqual([error.status, error.code], [502, "replica_broke"]);
  });
  test("nobody is there", async () => {
    const nobody = connect("nobody");
    assert.equal((await refused(OpenAI.InternalServerError, ask({}, {}, nobody))).code, "connect_failed");
    const error = await refused(OpenAI.InternalServerError, gather(nobody.models.list()));
    assert.deepEqual([error.status, error.code, error.headers.get("retry-after")], [503, "no_replica", "1"]);
  });
});

describe("broken streams", () => {
  test("chat", async () => {
    await fault({ fault: "reset", at: 4 });
    const chunks = [];
    const error = await (async () => {
      for await (const chunk of await ask({ stream: true, max_tokens: 50 })) chunks.push(chunk);
    })().then(() => assert.fail("it has ended well"), (error) => error);
    assert.equal(error.constructor, OpenAI.APIError);
    assert.deepEqual([error.code, error.type], ["replica_broke", "server_error"]);
    assert.ok(deltas(chunks).length > 0);
  });
  test("responses", async () => {
    await fault({ fault: "reset", at: 6 });
    const events = [];
    await assert.rejects(async () => {
      for await (const event of await client.responses.create({ model: MODEL, input: "Hello.", stream: true })) events.push(event);
    });
    assert.deepEqual([events.at(-1).type, events.at(-1).code], ["error", "replica_broke"]);
  });
});

describe("retries unseen", () => {
  test("one busy replica, one that breaks", async () => {
    await fault({ fault: "status", status: 429 }, "r1");
    await fault({ fault: "reset", at: "connect" }, "r2");
    const [asked, retries] = [await metric("prefix_router_requests_total"), await metric("prefix_router_retries_total")];
    for (let n = 0; n < 12; n++) assert.equal(await home(ask({ messages: user(`${n}`), max_tokens: 1 })), "r3");
    assert.equal(await metric("prefix_router_requests_total"), asked + 12);
    assert.ok((await metric("prefix_router_retries_total")) > retries);
  });
});

describe("timeouts", () => {
  test("the client's and the router's", async () => {
    await fault({ fault: "stall" });
    const [left, { aborted }] = [await metric("prefix_router_client_aborts_total"), await counts()];
    await refused(OpenAI.APIConnectionTimeoutError, ask({}, { timeout: 400 }));
    await until(async () => (await metric("prefix_router_client_aborts_total")) === left + 1, "the router counts a client that left");
    await until(async () => (await counts()).aborted === aborted + 1, "the replica sees that it left");
    const error = await refused(OpenAI.InternalServerError, ask({}, {}, connect("hasty")));
    assert.deepEqual([error.status, error.code], [504, "first_byte_timeout"]);
  });
});

describe("cancel", () => {
  const endless = { max_tokens: 2000, ignore_eos: true, stream: true };
  // `read` reads a stream and is told how to end it, which it has to do when `stop` says so.
  async function check(read) {
    const left = await metric("prefix_router_client_aborts_total");
    const before = Object.fromEntries(await Promise.all(Object.keys(REPLICAS).map(async (name) => [name, (await journal(name)).aborted])));
    const replica = await read(async (replica) => {
      assert.equal((await outstanding())[replica], 1);
      assert.equal(await running(replica), 1);
    });
    await until(async () => (await journal(replica)).aborted === before[replica] + 1, "the replica sees that it left");
    await until(async () => (await running(replica)) === 0, "nothing runs");
    await until(async () => (await outstanding())[replica] === 0, "nothing outstanding");
    await until(async () => (await metric("prefix_router_client_aborts_total")) === left + 1, "the router counts a client that left");
  }
  test("AbortController", () =>
    check(async (atWork) => {
      const controller = new AbortController();
      const { data, response } = await ask(endless, { signal: controller.signal }).withResponse();
      const replica = response.headers.get(REPLICA);
      let chunks = 0;
      for await (const _ of data) {
        if (++chunks === 3) {
          await atWork(replica);
          controller.abort();
        }
      }
      return replica;
    }));
  test("break", () =>
    check(async (atWork) => {
      const { data, response } = await ask(endless).withResponse();
      const replica = response.headers.get(REPLICA);
      for await (const _ of data) {
        await atWork(replica);
        break;
      }
      return replica;
    }));
  test("before the first byte", async () => {
    const { aborted } = await counts();
    const controller = new AbortController();
    const asked = refused(OpenAI.APIUserAbortError, ask({ max_tokens: 2000, ignore_eos: true }, { signal: controller.signal }));
    await until(async () => (await counts()).open === 1, "it has come");
    controller.abort();
    await asked;
    await until(async () => (await counts()).aborted === aborted + 1, "the replica sees that it left");
  });
});
