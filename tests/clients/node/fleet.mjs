// The fleet under test as an operator sees it: the replicas with their faults and counts, the routers with their metrics.
import assert from "node:assert/strict";
import { setTimeout as sleep } from "node:timers/promises";

const { env } = process;
export const MODEL = "demo-model";
export const REPLICA = "x-prefix-router-replica";
export const ERROR = "x-prefix-router-error";
export const REPLICAS = { r1: env.REPLICA_R1, r2: env.REPLICA_R2, r3: env.REPLICA_R3 };
export const ROUTERS = { main: env.ROUTER_MAIN, nobody: env.ROUTER_NOBODY, hasty: env.ROUTER_HASTY };
const ADMINS = { main: env.ADMIN_MAIN, nobody: env.ADMIN_NOBODY, hasty: env.ADMIN_HASTY };

async function text(url, options) {
  const answer = await fetch(url, options);
  assert.ok(answer.ok, `${url}: ${answer.status}`);
  return answer.text();
}

// The labels and values of one metric's samples.
async function samples(url, name) {
  const found = [];
  for (const line of (await text(`${url}/metrics`)).split("\n")) {
    const sample = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$/.exec(line);
    if (sample?.[1] === name) {
      const labels = Object.fromEntries([...(sample[2] ?? "").matchAll(/(\w+)="([^"]*)"/g)].map((label) => [label[1], label[2]]));
      found.push([labels, Number(sample[3])]);
    }
  }
  return found;
}

// The sum of a router's samples that have these labels.
export async function metric(name, labels = {}, router = "main") {
  const all = await samples(ADMINS[router], name);
  const fit = all.filter(([have]) => Object.entries(labels).every(([key, value]) => have[key] === value));
  return fit.reduce((sum, [, value]) => sum + value, 0);
}

export async function outstanding(router = "main") {
  const all = await samples(ADMINS[router], "prefix_router_outstanding");
  assert.ok(all.length > 0);
  return Object.fromEntries(all.map(([labels, value]) => [labels.replica, value]));
}

export async function journal(replica) {
  return JSON.parse(await text(`${REPLICAS[replica]}/demo/requests`));
}

// What became of all replicas' requests.
export async function counts() {
  const sums = { received: 0, open: 0, finished: 0, aborted: 0 };
  for (const replica of Object.keys(REPLICAS)) {
    const one = await journal(replica);
    for (const name of Object.keys(sums)) sums[name] += one[name];
  }
  return sums;
}

export async function running(replica) {
  const all = await samples(REPLICAS[replica], "vllm:num_requests_running");
  return all.reduce((sum, [, value]) => sum + value, 0);
}

let switchedOn = false;

// Switches a fault on, on these replicas or on all.
export async function fault(fault, ...replicas) {
  switchedOn = true;
  for (const replica of replicas.length ? replicas : Object.keys(REPLICAS)) {
    await text(`${REPLICAS[replica]}/demo/faults`, { method: "POST", body: JSON.stringify(fault) });
  }
}

export async function noFaults() {
  if (!switchedOn) return;
  for (const url of Object.values(REPLICAS)) await text(`${url}/demo/faults`, { method: "DELETE" });
  switchedOn = false;
}

export async function until(condition, what, seconds = 3) {
  const limit = Date.now() + seconds * 1000;
  while (!(await condition())) {
    assert.ok(Date.now() < limit, `not within ${seconds} s: ${what}`);
    await sleep(20);
  }
}

const none = (values) => Object.values(values).every((value) => value === 0);

// Nothing is in flight: not by any router's count, and not in any replica.
export async function atRest() {
  for (const router of Object.keys(ROUTERS)) await until(async () => none(await outstanding(router)), `${router}: nothing outstanding`);
  await until(async () => (await counts()).open === 0, "nothing open");
  for (const replica of Object.keys(REPLICAS)) await until(async () => (await running(replica)) === 0, `${replica}: nothing runs`);
}

export const words = (count) => Array.from({ length: count }, () => WORDS[Math.floor(Math.random() * WORDS.length)]).join(" ");
const WORDS = "time people way day man thing woman life child world school state family student group country problem".split(" ");

// A PNG of one red pixel.
export const PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg==";
