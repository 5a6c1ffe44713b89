// The browser, and the page in it as a reader has it: every error, every request elsewhere and every violation of its policy is kept.
import { createRequire } from "node:module";
import { join } from "node:path";

const { CHROMIUM, PAGE_DIR } = process.env;
const need = createRequire(join(PAGE_DIR, "package.json"));
const { chromium } = need("playwright-core");
const AXE = need.resolve("axe-core/axe.min.js");

const FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"];

export const launch = () => chromium.launch({ executablePath: CHROMIUM, args: FLAGS });

/** Opens the page of a router. */
export async function open(browser, router, { width = 1280, height = 900, scheme = "light", deviceScaleFactor = 1 } = {}) {
  const context = await browser.newContext({ viewport: { width, height }, colorScheme: scheme, deviceScaleFactor });
  const page = await context.newPage();
  page.faults = [];
  page.asked = [];
  page.on("pageerror", (error) => page.faults.push(`error: ${error.message}`));
  page.on("console", (message) => {
    // A browser tells of each answer that is an error; the page does as well.
    if (message.type() === "error" && !message.text().startsWith("Failed to load resource")) page.faults.push(`console: ${message.text()}`);
  });
  page.on("request", (request) => {
    const url = new URL(request.url());
    page.asked.push(url.pathname + url.search);
    if (url.origin !== router.admin) page.faults.push(`asked elsewhere: ${request.url()}`);
  });
  await page.goto(`${router.admin}/`);
  return page;
}

/** The text of an element, as it is read. */
export const text = async (page, selector) => (await page.textContent(selector)).trim();

/** The figures of a replica's row. */
export const row = (page, name) => page.locator("#fleet tbody tr").filter({ has: page.locator("th span", { hasText: name }) });

/** What axe-core finds; nothing, if all is well. */
export async function violations(page) {
  if (!(await page.evaluate(() => "axe" in window))) {
    // Through the debugger: the page's own policy lets in no script.
    const { readFileSync } = await import("node:fs");
    await page.evaluate(readFileSync(AXE, "utf8"));
  }
  const { violations: found, passes } = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
  if (passes.length < 10) throw new Error(`axe-core checked only ${passes.length} rules`);
  return found.map(({ id, nodes }) => `${id}: ${nodes.map((node) => `${node.html.slice(0, 120)} ${node.failureSummary.replaceAll("\n", " ").slice(0, 200)}`).join(" | ")}`);
}
