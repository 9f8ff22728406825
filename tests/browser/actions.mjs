// Pauses, resumes and ticks a poller, each after a confirmation, with the keyboard alone.
import assert from "node:assert/strict";
import { checkLayout, open, page, screenshot, start } from "./common.mjs";

const browser = await start();
const { context, tab, problems } = await open(browser, { viewport: { width: 390, height: 844 } });
const badge = () => tab.locator(".head [data-word]").getAttribute("data-word");
const message = () => tab.locator(".said").textContent();

const act = async (name, reason) => {
  const form = tab.locator(`#${name}-action form`);
  await tab.locator(`#${name}-action summary`).press("Enter");
  await form.locator("button").press("Enter");
  assert.equal(await tab.locator(".said").count() && (await message()), message.last ?? 0, "nothing is done unconfirmed");
  if (reason) await form.locator("[name=reason]").fill(reason);
  await form.locator("[name=confirm]").press("Space");
  await screenshot(tab, `${name}-phone-light`);
  await Promise.all([tab.waitForNavigation(), form.locator("button").press("Enter")]);
  message.last = await message();
  await checkLayout(tab, problems, name);
};

await tab.goto(page("/api/status/page?poller=orders"));
assert.equal(await badge(), "Never ran");
await act("tick");
assert.match(message.last, /committed 1 row/);
assert.equal(await badge(), "Idle");
// The page explains why the row is there.
await tab.locator("#trace-key").fill("1");
await Promise.all([tab.waitForNavigation(), tab.locator("form.line button").press("Enter")]);
assert.match(await tab.locator("form.line ~ [role=status]").textContent(), /orders, id=1: delivered/);
await screenshot(tab, "trace-phone-light");
await checkLayout(tab, problems, "trace");
await tab.goto(page("/api/status/page?poller=orders"));
await act("pause", "the target moves <b>now</b>");
assert.equal(message.last, "Paused.");
assert.equal(await badge(), "Paused");
const cause = /^paused by \S+ \(status page\): the target moves <b>now<\/b>$/;
assert.match(await tab.locator(".notice pre").first().textContent(), cause);
await act("resume", "it has moved");
assert.equal(message.last, "Resumed.");
assert.equal(await badge(), "Idle");

// Typed text survives a refresh.
await tab.locator("#pause-action summary").press("Enter");
await tab.locator("#pause-reason").fill("half a reason");
await Promise.all([
  tab.waitForResponse((response) => response.url().includes("html=1")),
  tab.evaluate(() => document.dispatchEvent(new Event("visibilitychange"))),
]);
await tab.waitForFunction(() => document.getElementById("fresh").textContent.startsWith("Refreshed"));
assert.equal(await tab.locator("#pause-reason").inputValue(), "half a reason");
assert.ok(await tab.locator("#pause-action").evaluate((details) => details.open));

// A page of another origin cannot make the browser do it, although it knows where to send the form.
const other = await open(browser, {});
await other.tab.route("http://evil.example/", (route) =>
  route.fulfill({
    contentType: "text/html",
    body: `<form method="post" action="${page("/actions/pause")}"><input name="poller" value="orders">
      <input name="reason" value="x"><input name="confirm" value="yes"></form><script>document.forms[0].submit()</script>`,
  }),
);
const [refused] = await Promise.all([
  other.tab.waitForResponse((response) => response.url().includes("/actions/pause")),
  other.tab.goto("http://evil.example/"),
]);
assert.equal(refused.status(), 403);
await tab.goto(page("/api/status/page?poller=orders"));
assert.equal(await badge(), "Idle");
await checkLayout(tab, problems, "after all");

await context.close();
await browser.close();
console.log("done");
