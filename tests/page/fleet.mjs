// What the page is tried on: the router's binary, simulated replicas by the same binary, and many small ones that only answer.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";

const { ROUTER } = process.env;
export const MODEL = "demo-model";
const PATIENCE = 20_000;

/** Asks again until it is so; gives what came. */
export async function eventually(what, ask) {
  const until = Date.now() + PATIENCE;
  let last;
  for (;;) {
    try {
      const got = await ask();
      if (got) return got;
      last = got;
    } catch (error) {
      last = error;
    }
    if (Date.now() > until) assert.fail(`not within ${PATIENCE / 1000} s: ${what} (${last})`);
    await sleep(30);
  }
}

/** A process of the router's binary; its log is kept. */
class Process {
  constructor(args) {
    this.log = "";
    this.child = spawn(ROUTER, args, { stdio: ["ignore", "pipe", "pipe"] });
    for (const stream of [this.child.stdout, this.child.stderr]) stream.on("data", (data) => (this.log += data));
    this.ended = new Promise((resolve) => this.child.on("exit", resolve));
  }

  found(pattern) {
    return eventually(`${pattern} in the log of ${this.child.spawnargs}`, () => {
      if (this.child.exitCode !== null) throw new Error(this.log);
      return pattern.exec(this.log);
    });
  }

  async stop(signal = "SIGKILL") {
    this.child.kill(signal);
    await this.ended;
  }
}

export async function simulated(name) {
  const process = new Process(["demo-replica", "--listen", "127.0.0.1:0", "--model", MODEL]);
  const [, address] = await process.found(/(127\.0\.0\.1:[1-9]\d*)/);
  return { name, address, stop: () => process.stop() };
}

/** One that answers whatever comes, at once. */
export async function small(name) {
  const usage = { prompt_tokens: 100, completion_tokens: 1, total_tokens: 101, prompt_tokens_details: { cached_tokens: 50 } };
  const server = createServer((request, response) => {
    request.resume().on("end", () => response.setHeader("content-type", "application/json").end(JSON.stringify({ usage })));
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  return { name, address: `127.0.0.1:${server.address().port}`, stop: () => server.closeAllConnections() ?? server.close() };
}

export class Router {
  static async start(replicas, settings = {}) {
    const router = new Router();
    router.folder = mkdtempSync(join(tmpdir(), "prefix-router-page-"));
    router.replicas = replicas;
    await router.begin(settings);
    return router;
  }

  async begin(settings) {
    this.settings = settings;
    const all = { listen: "127.0.0.1:0", admin: "127.0.0.1:0", health_check_interval: "100ms", health_check_rise: 1, engine_metrics_interval: "200ms", access_log: false, ...settings };
    const list = this.replicas.map(({ name, address, models }) => ({ url: `http://${address}`, name, ...(models ? { models } : {}) }));
    const file = join(this.folder, "router.yaml");
    const lines = Object.entries(all).map(([key, value]) => `${key}: ${value}\n`);
    // JSON is YAML.
    writeFileSync(file, `${lines.join("")}replicas: ${JSON.stringify(list)}\n`);
    this.process = new Process(["serve", "--config", file]);
    const [, traffic, admin] = await this.process.found(/listening on ([\d.:]+), admin port on ([\d.:]+)/);
    this.url = `http://${traffic}`;
    this.admin = `http://${admin}`;
    this.addresses = { listen: traffic, admin };
    await eventually("all replicas are up", async () => (await this.metric("prefix_router_replica_state", { state: "up" })) === this.replicas.length);
  }

  async die() {
    await this.process.stop();
  }

  /** Where it was before. */
  async again() {
    await this.begin({ ...this.settings, ...this.addresses });
  }

  async stop() {
    await this.process.stop();
    rmSync(this.folder, { recursive: true, force: true });
  }

  chat(text, more = {}) {
    const body = { model: MODEL, max_tokens: 2, messages: [{ role: "user", content: text }], ...more };
    return this.post("/v1/chat/completions", body);
  }

  async post(path, body, headers = {}) {
    const answer = await fetch(this.url + path, { method: "POST", headers: { "content-type": "application/json", ...headers }, body: JSON.stringify(body) });
    await answer.text();
    return answer;
  }

  /** The sum of the samples of /metrics that have these labels. */
  async metric(name, labels = {}) {
    const text = await (await fetch(`${this.admin}/metrics`)).text();
    let sum = 0;
    for (const line of text.split("\n")) {
      const sample = /^([a-z_]+)(?:\{(.*)\})? (\S+)$/.exec(line);
      if (sample?.[1] === name && Object.entries(labels).every(([key, value]) => sample[2]?.includes(`${key}="${value}"`))) sum += Number(sample[3]);
    }
    return sum;
  }
}
