// Shared by both scripts: a browser that records every forbidden action of a page.
import assert from "node:assert/strict";
import { chromium } from "playwright-core";

export const input = JSON.parse(process.argv[2]);
export const page = (path = "") => new URL(path, input.url).href;

/** Starts the browser; no sandbox, since tests may run as root. */
export const start = () =>
  chromium.launch({ executablePath: input.browser, args: ["--no-sandbox", "--disable-gpu", "--no-proxy-server"] });

/** Opens a tab, and returns it with the list of problems in it. */
export const open = async (browser, options) => {
  const context = await browser.newContext({ reducedMotion: "reduce", ...options });
  const tab = await context.newPage();
  tab.setDefaultTimeout(15_000);
  const problems = [];
  tab.on("console", (message) => {
    if (["error", "warning"].includes(message.type())) problems.push(`console: ${message.text()}`);
  });
  tab.on("pageerror", (error) => problems.push(`error: ${error.message}`));
  tab.on("dialog", (dialog) => {
    problems.push(`dialog: ${dialog.message()}`);
    dialog.dismiss();
  });
  tab.on("request", (request) => {
    const url = new URL(request.url());
    if (url.protocol !== "data:" && url.origin !== new URL(input.url).origin) problems.push(`request: ${url}`);
  });
  return { context, tab, problems };
};

/** Checks that a tab is as wide as it is shown, and that there were no problems in it. */
export const checkLayout = async (tab, problems, where) => {
  const [wide, shown] = await tab.evaluate(() => [
    document.documentElement.scrollWidth,
    document.documentElement.clientWidth,
  ]);
  assert.ok(wide <= shown, `${where}: ${wide} px wide, ${shown} px are shown`);
  assert.deepEqual(problems, [], where);
};

export const screenshot = (tab, name) => tab.screenshot({ path: `${input.screenshots}/${name}.png`, fullPage: true });
