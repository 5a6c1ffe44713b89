// What a reader sees on the page, and that it is what /metrics says.
import assert from "node:assert/strict";
import { mkdirSync } from "node:fs";
import { join } from "node:path";
import { after, afterEach, before, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import { eventually, MODEL, Router, simulated, small } from "./fleet.mjs";
import { launch, open, row, text, violations } from "./page.mjs";

const MARKUP = "<img/src=x>";
const pictures = process.env.PICTURES;
if (pictures) mkdirSync(pictures, { recursive: true });
const picture = async (page, name, height) => {
  if (!pictures) return;
  const { width } = page.viewportSize();
  // Nothing is pointed at.
  await page.mouse.move(1, 1);
  if (height) await page.setViewportSize({ width, height });
  await page.screenshot({ path: join(pictures, name), fullPage: !height });
};

let browser, replicas;
let page;
before(async () => {
  browser = await launch();
  replicas = await Promise.all([simulated("a"), simulated("b"), simulated(MARKUP)]);
});
after(async () => {
  await browser?.close();
  await Promise.all((replicas ?? []).map((replica) => replica.stop()));
});
afterEach(async () => {
  await page?.context().close();
  page = undefined;
});

async function started(settings, more) {
  const router = await Router.start(more?.replicas ?? replicas, settings);
  page = await open(browser, router, more);
  return router;
}

const live = () => eventually("the page is live", async () => (await text(page, "#connection")) === "Live");
const number = (said) => Number(said.replaceAll(",", "").split(" ")[0]);

test("its figures are those of /metrics", async () => {
  const router = await started({});
  try {
    for (let at = 0; at < 30; at++) {
      const streams = at % 2 ? { stream: true, stream_options: { include_usage: true } } : {};
      await router.chat(`${"You are a pirate. ".repeat(400)} ${at % 5}`, streams);
    }
    await router.post("/v1/chat/completions", {});
    await fetch(`${router.url}/nothing`);
    await eventually("all are counted", async () => (await router.metric("prefix_router_requests_total")) === 32);
    await eventually("all are shown", async () => number(await text(page, "#tile-requests")) === 32);
    await eventually("the flow is shown", async () => (await page.locator("#flow-legend li:visible").count()) > 0);
    await page.click("#flow-table >> xpath=ancestor::details/summary");
    await eventually("the flow has all", async () => {
      const legend = await page.locator("#flow-legend li:visible").allTextContents();
      const shown = Object.fromEntries(legend.map((one) => one.trim().split(" ")));
      // What ended before the first step of five seconds is nobody's there.
      return Object.keys(shown).length >= 2 && Number(shown.home) > 0;
    });
    for (const name of ["a", "b", MARKUP]) {
      const shown = row(page, name);
      assert.equal(await shown.count(), 1, name);
      const threshold = await router.metric("prefix_router_concurrency_threshold", { replica: name });
      const inFlight = await router.metric("prefix_router_outstanding", { replica: name });
      assert.equal(await shown.locator(".outstanding").textContent(), `${inFlight} of ${threshold}`, name);
      const share = (await router.metric("prefix_router_choices_total", { replica: name })) / (await router.metric("prefix_router_choices_total"));
      const percent = share * 100;
      assert.equal(await shown.locator(".share").textContent(), `${percent > 0 && percent < 10 ? percent.toFixed(1) : percent.toFixed(0)} %`, name);
    }
    const [cached, prompt] = await Promise.all(["cached", "prompt"].map((kind) => router.metric("prefix_router_usage_tokens_total", { kind })));
    assert.ok(cached > 0 && prompt > cached);
    assert.equal(await text(page, "#tile-saved"), `${((cached / prompt) * 100).toFixed(0)} %`);
    assert.equal(await text(page, "#tile-saved-more"), `${cached.toLocaleString("en-US")} of ${prompt.toLocaleString("en-US")} tokens of prompts`);
    assert.match(await text(page, "#saved-text"), /at most/, "with its uncertainty");
    assert.equal(await text(page, "#tile-state"), "Yes");
    assert.equal(await text(page, "#tile-state-more"), "3 of 3 replicas up");
    assert.match(await text(page, "#ring-said"), /Shares of the ring: .* %/);
    assert.match(await page.getAttribute("#ring", "aria-label"), /<img\/src=x>/);
    assert.equal(await page.locator("img").count(), 0, "a name is text");
    assert.deepEqual(page.faults, []);
  } finally {
    await router.stop();
  }
});

test("the last request says where it went and why, and the form says where one would go", async () => {
  const router = await started({ retries: 1 });
  try {
    await live();
    const answer = await router.post("/v1/chat/completions", { model: MODEL, max_tokens: 1, messages: [{ role: "user", content: "Who?" }] }, { "x-request-id": "find-me" });
    const [replica, reason] = ["replica", "reason"].map((name) => answer.headers.get(`x-prefix-router-${name}`));
    const first = page.locator("#decisions tbody tr").first();
    await eventually("it is shown", async () => (await first.textContent()).includes("find-me"));
    const shown = await first.textContent();
    for (const word of [replica, reason, `belong to ${replica}.`, "POST chat_completions"]) assert.ok(shown.includes(word), `${word} in ${shown}`);
    assert.equal(await text(page, "#tile-last"), `Prompts that begin with the same 4 characters belong to ${replica}.`);
    // Found by its id; others are not.
    await router.chat("another");
    await eventually("both are there", async () => (await page.locator("#decisions tbody tr").count()) === 2);
    await page.fill("#decisions-filter", "FIND-me");
    assert.equal(await page.locator("#decisions tbody tr").count(), 1);
    await page.fill("#decisions-filter", "");
    // Paused, nothing moves; then what was missed is there.
    await page.click("#decisions-pause");
    await router.chat("a third");
    await eventually("it is counted", async () => number(await text(page, "#tile-requests")) === 3);
    assert.equal(await page.locator("#decisions tbody tr").count(), 2);
    await page.click("#decisions-pause");
    assert.equal(await page.locator("#decisions tbody tr").count(), 3);

    const asked = await router.metric("prefix_router_requests_total");
    await page.fill("#explain-body", JSON.stringify({ model: MODEL, messages: [{ role: "user", content: "Who?" }] }));
    await page.press("#explain-body", "Tab");
    await page.keyboard.press("Enter");
    await eventually("it is explained", async () => (await text(page, "#explain-answer")).includes(`It goes to ${replica}.`));
    assert.match(await text(page, "#explain-answer"), /Its first 4 characters/);
    assert.equal(await page.locator("#explain-answer table tbody tr").first().locator("th").textContent(), replica);
    assert.equal(await router.metric("prefix_router_requests_total"), asked, "nothing was sent");
    await page.fill("#explain-path", "/nothing");
    await page.click("#explain button");
    await eventually("the error is shown", async () => (await text(page, "#explain-answer")).includes("not served"));
    assert.deepEqual(page.faults, []);
  } finally {
    await router.stop();
  }
});

test("drained and undrained by keyboard alone, after being told what happens", async () => {
  const router = await started({});
  try {
    await live();
    await eventually("the ring is known", async () => (await text(page, "#ring-said")).includes("%"));
    const state = (name) => router.metric("prefix_router_replica_state", { replica: "b", state: name });
    const button = page.getByRole("button", { name: "Drain b", exact: true });
    await button.focus();
    await page.keyboard.press("Enter");
    assert.ok(await page.locator("#confirm").isVisible());
    const told = await text(page, "#confirm");
    for (const word of ["b gets no new requests", "nothing in flight", "of the ring", "2 other replicas are up"]) assert.ok(told.includes(word), `${word} in ${told}`);
    assert.deepEqual(await violations(page), [], "with the dialog open");
    // Cancel has the focus, so that nothing is done by accident.
    await page.keyboard.press("Enter");
    assert.ok(!(await page.locator("#confirm").isVisible()));
    assert.equal(await state("draining"), 0);
    await button.focus();
    await page.keyboard.press("Enter");
    await page.keyboard.press("Tab");
    await page.keyboard.press("Enter");
    await eventually("it is drained", async () => (await state("draining")) === 1);
    await eventually("it is shown", async () => (await row(page, "b").locator(".state").textContent()) === "draining");
    assert.match(await row(page, "b").textContent(), /by the API; it is up/);
    assert.match(await text(page, "#tile-state-more"), /2 of 3 replicas up; b is draining/);
    const back = page.getByRole("button", { name: "Undrain b", exact: true });
    await back.focus();
    await page.keyboard.press("Enter");
    await page.keyboard.press("Tab");
    await page.keyboard.press("Enter");
    await eventually("it is up again", async () => (await state("up")) === 1);
    // The last one that is up is drained with a warning.
    for (const name of ["a", "b"]) await fetch(`${router.admin}/api/v1/replicas/${name}/drain`, { method: "POST" });
    await eventually("one is left", async () => (await text(page, "#tile-state-more")).startsWith("1 of 3"));
    await page.getByRole("button", { name: `Drain ${MARKUP}`, exact: true }).click();
    assert.match(await text(page, "#confirm"), /No other replica is up/);
    await page.keyboard.press("Escape");
    assert.ok(!(await page.locator("#confirm").isVisible()));
    assert.deepEqual(page.faults, []);
  } finally {
    await router.stop();
  }
});

test("when the router is gone the page says so, and comes back by itself", async () => {
  const router = await started({});
  try {
    for (let at = 0; at < 5; at++) await router.chat(String(at));
    await eventually("five are shown", async () => number(await text(page, "#tile-requests")) === 5);
    await router.die();
    await eventually("it is said", async () => /does not answer: .* old\. Trying again by itself\./.test(await text(page, "#banner")));
    assert.equal(await text(page, "#connection"), "Not connected");
    assert.deepEqual(await violations(page), [], "while it is gone");
    await router.again();
    await live();
    assert.ok(!(await page.locator("#banner").isVisible()));
    // Another process counts anew, and so does the page.
    assert.equal(await text(page, "#tile-requests"), "0");
    await router.chat("after");
    await eventually("one is shown", async () => (await page.locator("#decisions tbody tr").count()) === 1 && number(await text(page, "#tile-requests")) === 1);
    assert.deepEqual(page.faults, []);
  } finally {
    await router.stop();
  }
});

test("where a token is needed it is asked for, and kept as long as the tab", async () => {
  const router = await started({ admin_token: "sesame" });
  try {
    await eventually("the token is asked for", () => page.locator("#token").isVisible());
    assert.deepEqual(await violations(page), []);
    for (const token of ["open", "sesame"]) {
      await eventually("the form is there", () => page.locator("#token").isVisible());
      await page.fill("#token-value", token);
      await page.keyboard.press("Enter");
    }
    await live();
    await eventually("the fleet is shown", async () => (await page.locator("#fleet tbody tr").count()) === 3);
    await page.reload();
    await live();
    assert.ok(!page.asked.some((asked) => asked.includes("sesame")), "no address has it");
    assert.deepEqual(page.faults, []);
  } finally {
    await router.stop();
  }
});

test("who does not look costs nothing", async () => {
  const router = await started({});
  try {
    await live();
    // As a browser tells of a tab in the background.
    const hide = (hidden) => page.evaluate((value) => {
      Object.defineProperty(document, "hidden", { configurable: true, get: () => value });
      document.dispatchEvent(new Event("visibilitychange"));
    }, hidden);
    await hide(true);
    await sleep(2_500);
    const asked = page.asked.length;
    await sleep(4_500);
    assert.equal(page.asked.length, asked, "nothing is asked");
    await hide(false);
    await eventually("it goes on at once", () => page.asked.length > asked);
    assert.deepEqual(page.faults, []);
  } finally {
    await router.stop();
  }
});

test("all of it is reached by keyboard, and nothing is wrong by axe-core: light, dark, on a phone", async () => {
  const fleet = await Promise.all([0, 1, 2, 3, 4].map((at) => simulated(`vllm-${at}`)));
  fleet.forEach((replica) => (replica.models = [MODEL]));
  const router = await Router.start(fleet, { concurrency_threshold: 4 });
  try {
    // One document is asked for as often as all others together, so that its home overflows.
    const load = (count, begin) => Promise.all(Array.from({ length: count }, (_, at) =>
      router.chat(`${`Document ${at % 2 ? 0 : 1 + ((begin + at) % 9)}. `.repeat(500)} ${at}`, { max_tokens: 20, stream: true, stream_options: { include_usage: true } })));
    for (let round = 0; round < 14; round++) {
      await load(6 + 4 * (round % 4), round);
      await sleep(500);
    }
    for (const [name, more, tall] of [["light", {}], ["dark", { scheme: "dark" }, 1500], ["phone", { width: 360, height: 740 }, 1500]]) {
      page = await open(browser, router, more);
      await live();
      await page.click("#explain button");
      await eventually("it is explained", async () => (await text(page, "#explain-answer")).includes("It goes to"));
      await eventually("the flow is shown", async () => (await page.locator("#flow-legend li:visible").count()) > 0);
      assert.deepEqual(await violations(page), [], name);
      const width = await page.evaluate(() => document.documentElement.scrollWidth);
      assert.ok(width <= (more.width ?? 1280), `${name}: ${width} wide, so it is scrolled sideways`);
      await page.evaluate(() => window.scrollTo(0, 0));
      await picture(page, `ui-${name}.png`, tall);
      if (name === "light") {
        const wanted = new Set(await page.evaluate(() => [...document.querySelectorAll("a, button, input, select, textarea, summary, .scroll")]
          .filter((one) => one.checkVisibility() && !one.disabled).map((one, at) => (one.dataset.reach = String(at)))));
        await page.evaluate(() => document.activeElement?.blur());
        await page.focus(".skip");
        for (let step = 0; step < 200 && wanted.size; step++) {
          wanted.delete(await page.evaluate(() => document.activeElement?.dataset.reach));
          await page.keyboard.press("Tab");
        }
        assert.equal(wanted.size, 0, `not reached by Tab: ${[...wanted]}`);
      }
      assert.deepEqual(page.faults, []);
      await page.context().close();
      page = undefined;
    }
  } finally {
    await router.stop();
    await Promise.all(fleet.map((replica) => replica.stop()));
  }
});

test("with 200 replicas it stays quick, and its rows stay what they are", async () => {
  const many = await Promise.all(Array.from({ length: 200 }, (_, at) => small(`replica-${String(at).padStart(3, "0")}`)));
  const router = await started({ health_check_interval: "2s", engine_metrics_interval: "0s" }, { replicas: many });
  try {
    await eventually("all are shown", async () => (await page.locator("#fleet tbody tr").count()) === 200);
    const send = () => Promise.all(Array.from({ length: 100 }, (_, at) => router.chat(`prompt ${Math.random()} ${at}`)));
    await send();
    await page.evaluate(() => document.querySelectorAll("#fleet tbody tr").forEach((one, at) => (one.mark = at)));
    const rounds = () => page.asked.filter((asked) => asked.startsWith("/api/v1/fleet")).length;
    const begin = rounds();
    const used = async () => Object.fromEntries((await session.send("Performance.getMetrics")).metrics.map(({ name, value }) => [name, value]));
    const session = await page.context().newCDPSession(page);
    await session.send("Performance.enable");
    const [first, start] = [await used(), Date.now()];
    while (Date.now() - start < 8_000) await send();
    const last = await used();
    const count = rounds() - begin;
    const spent = ["ScriptDuration", "LayoutDuration", "RecalcStyleDuration"].map((name) => `${name} ${(((last[name] - first[name]) / count) * 1000).toFixed(1)} ms`);
    console.log(`200 replicas: ${count} rounds in ${((Date.now() - start) / 1000).toFixed(1)} s; in each ${spent.join(", ")}`);
    assert.ok(count >= 2, `${count} rounds`);
    assert.ok(await page.evaluate(() => [...document.querySelectorAll("#fleet tbody tr")].every((one) => one.mark !== undefined)), "no row was made anew");
    await page.fill("#fleet-filter", "replica-19");
    assert.equal(await page.locator("#fleet tbody tr").count(), 10);
    assert.equal(await text(page, "#fleet-count"), "10 of 200 replicas");
    await page.fill("#fleet-filter", "");
    const column = page.locator("#fleet thead button", { hasText: "Share" });
    await column.click();
    const shares = await page.locator("#fleet .share").allTextContents();
    const values = shares.map((share) => Number(share.split(" ")[0]));
    assert.deepEqual(values, values.toSorted((one, other) => other - one), "the largest share first");
    await page.selectOption("#ring-replica", "replica-007");
    assert.match(await text(page, "#ring-said"), /^replica-007 owns .* % of the ring\.$/);
    assert.deepEqual(await violations(page), []);
    await page.evaluate(() => window.scrollTo(0, 0));
    await picture(page, "ui-200.png", 1500);
    assert.deepEqual(page.faults, []);
  } finally {
    await router.stop();
    many.forEach((replica) => replica.stop());
  }
});
