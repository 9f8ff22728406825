// Checks the page: in both themes, at desktop and phone width, with the keyboard, without scripts, and for
// assistive technology.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { checkLayout, input, open, page, screenshot, start } from "./common.mjs";

const axe = createRequire(import.meta.url).resolve("axe-core/axe.min.js");
const SIZES = { desk: { width: 1280, height: 800 }, phone: { width: 390, height: 844 } };
const browser = await start();

const accessible = async (tab, where) => {
  // Injected by the debugger, which the page's own policy does not restrict.
  const source = (await import("node:fs")).readFileSync(axe, "utf8");
  await tab.evaluate(source);
  const found = await tab.evaluate(() => globalThis.axe.run({ runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"] }));
  const violations = found.violations.map((rule) => `${rule.id}: ${rule.help}: ${rule.nodes.map((node) => node.html).join(" | ")}`);
  assert.deepEqual(violations, [], where);
};

// Every view in each theme and width.
for (const colorScheme of ["light", "dark"]) {
  for (const [size, viewport] of Object.entries(SIZES)) {
    const { context, tab, problems } = await open(browser, { colorScheme, viewport });
    for (const [view, path] of [
      ["overview", "/"],
      ["orders", "/api/status/page?poller=orders"],
      ["invoices", "/api/status/page?poller=invoices"],
      ["runbook", "/api/status/page?poller=invoices&runbook=backing-off"],
    ]) {
      const where = `${view}-${size}-${colorScheme}`;
      await tab.goto(page(path));
      await screenshot(tab, where);
      await checkLayout(tab, problems, where);
      await accessible(tab, where);
      const ground = await tab.evaluate(() => getComputedStyle(document.body).backgroundColor);
      const light = Number(ground.match(/\d+/)[0]) > 128;
      assert.equal(light, colorScheme === "light", `${where}: the ground is ${ground}`);
    }
    await context.close();
  }
}

const { context, tab, problems } = await open(browser, { viewport: SIZES.desk });

// Every stored poller is shown, and every badge explains its meaning.
await tab.goto(page());
assert.equal(new URL(tab.url()).pathname, "/api/status/page");
assert.deepEqual(await tab.locator("tbody th a").allTextContents(), input.pollers);
const words = await tab.locator("[data-word]").evaluateAll((all) => all.map((badge) => badge.dataset.word));
for (const word of ["Idle", "Backing off", "Paused", "Silent", "Failing"]) {
  assert.ok(words.includes(word), `${word} in ${words}`);
}

// The keyboard reaches each poller, in order, and opens its view; the focus is visible.
const reached = [];
for (let presses = 0; presses < 40 && reached.length < input.pollers.length; presses += 1) {
  await tab.keyboard.press("Tab");
  const focus = await tab.evaluate(() => {
    const element = document.activeElement;
    return { text: element.textContent, outline: getComputedStyle(element).outlineStyle, row: Boolean(element.closest("tbody th")) };
  });
  assert.notEqual(focus.outline, "none", `the focus on ${focus.text} cannot be seen`);
  if (focus.row) reached.push(focus.text);
}
assert.deepEqual(reached, input.pollers);
await tab.locator("tbody th a", { hasText: "invoices" }).focus();
await tab.keyboard.press("Enter");
await tab.waitForURL(/poller=invoices/);
assert.equal(await tab.locator("h1").textContent(), "invoices");
assert.ok((await tab.locator("caption").count()) >= 1);

// A backlog is in rows, never in positions of the whole database.
const behind = await tab.goto(page()).then(() => tab.locator("tbody tr", { hasText: "old_returns" }).textContent());
assert.ok(behind.includes("1,830 rows pending") && !behind.includes("4,200"), behind);

// A paused poller announces no tick.
const paused = await tab.locator("tbody tr", { hasText: "stock_levels" }).locator("[data-label='Next tick']").textContent();
assert.equal(paused, "–");

// A red state leads to its runbook, with the name of the poller in its commands, and back.
await tab.locator("tbody tr", { hasText: "invoices" }).locator("a", { hasText: "Runbook" }).click();
assert.match(await tab.locator("h1").textContent(), /^backing-off: /);
assert.ok((await tab.locator(".runbook").textContent()).includes("highwater status invoices"));
// It does not refresh: that would replace it by the status.
const runbook = await tab.locator("#content").innerHTML();
const requests = [];
const listen = (request) => requests.push(request.url());
tab.on("request", listen);
await tab.evaluate(() => document.dispatchEvent(new Event("visibilitychange")));
await tab.waitForTimeout(300);
tab.off("request", listen);
assert.deepEqual([requests, await tab.locator("#content").innerHTML()], [[], runbook]);
await tab.locator(".runbook a").first().click();
assert.match(await tab.locator("h1").textContent(), /: /);
await tab.locator("nav a").click();
assert.equal(await tab.locator("h1").textContent(), "invoices");

// Parked keys are listed, and so is what was delivered in the last hours.
const keys = await tab.locator("#keys ~ .scroll tbody tr").allTextContents();
assert.equal(keys.length, 2);
assert.ok(keys.some((row) => row.includes("id=17") && row.includes("retrying")), keys);
assert.ok(keys.some((row) => row.includes("id=4711") && row.includes("quarantined")), keys);
await tab.goto(page("/api/status/page?poller=orders"));
assert.equal(await tab.locator(".chart").count(), 3);
// Nothing on the page has a time without its zone.
assert.ok((await tab.locator("footer").textContent()).includes("All times are in UTC"));

// Asked for a row, the page says why it cannot tell: this process does not reach the database.
await tab.locator("#trace-key").fill("17");
await Promise.all([tab.waitForNavigation(), tab.locator("form.line button").press("Enter")]);
assert.match(await tab.locator("form.line ~ [role=status]").textContent(), /127\.0\.0\.1/);
assert.equal(await tab.locator("#trace-key").inputValue(), "17");
problems.splice(0);

await tab.goto(page("/api/status/page?poller=invoices"));
// Untrusted texts stay texts; characters that would reorder them are replaced.
const error = await tab.locator(".notice pre").first().textContent();
assert.ok(error.startsWith(input.hostile.slice(0, 30)), error);
assert.ok(error.includes("\ufffd") && !error.includes("\u202e"), error);
await tab.goto(page("/api/status/page?poller=orders"));
assert.ok((await tab.locator("#journal ~ .scroll").textContent()).includes("<img src=x"));
assert.equal(await tab.locator("img").count(), 0);
assert.ok((await tab.title()).endsWith("orders · Highwater"), await tab.title());

// The script renders the same content as the server did, and the focus stays.
const shape = () =>
  tab.evaluate(() => {
    const copy = document.getElementById("content").cloneNode(true);
    // Times change.
    return copy.outerHTML.replace(/[\d:.]+/g, "0").replace(/0 (s|min|h|ms)/g, "0").replace(/[TZ]/g, "");
  });
const before = await shape();
await tab.locator("nav a").focus();
const [answer] = await Promise.all([
  tab.waitForResponse((response) => response.url().includes("html=1")),
  tab.evaluate(() => document.dispatchEvent(new Event("visibilitychange"))),
]);
assert.equal(answer.status(), 200);
await tab.waitForFunction(() => document.getElementById("fresh").textContent.startsWith("Refreshed"));
assert.equal(await shape(), before);
assert.ok(await tab.evaluate(() => document.activeElement.matches("nav a")), "the focus stayed");

// Refreshing can be stopped, and a failed refresh is reported.
await tab.locator("#stop").click();
assert.equal(await tab.locator("#fresh").textContent(), "Not refreshing");
await tab.route("**/api/status?*", (route) => route.fulfill({ status: 503, json: { error: "no store" } }));
await tab.locator("#stop").click();
await tab.waitForFunction(() => document.getElementById("fresh").textContent.includes("no store"));
const expected = problems.splice(0).filter((text) => !text.includes("503"));
assert.deepEqual(expected, []);
await context.close();

// Without scripts the server's page is complete.
{
  const { context, tab, problems } = await open(browser, { javaScriptEnabled: false, viewport: SIZES.desk });
  await tab.goto(page());
  await tab.locator("tbody th a", { hasText: "customers" }).click();
  assert.equal(await tab.locator("h1").textContent(), "customers");
  assert.equal(await tab.locator("#refresh").isVisible(), false);
  await tab.locator("nav a").click();
  assert.deepEqual(await tab.locator("tbody th a").allTextContents(), input.pollers);
  assert.deepEqual(problems, []);
  await context.close();
}

await browser.close();
console.log("done");
