// What both scripts have in common: a browser that notes whatever it must not do.
import assert from "node:assert/strict";
import { chromium } from "playwright-core";

export const told = JSON.parse(process.argv[2]);
export const page = (path = "") => new URL(path, told.url).href;

/** Starts the browser; no sandbox, since tests may run as root. */
export const start = () =>
  chromium.launch({ executablePath: told.browser, args: ["--no-sandbox", "--disable-gpu", "--no-proxy-server"] });

/** Opens a tab, and returns it with the list of what went wrong in it. */
export const open = async (browser, options) => {
  const context = await browser.newContext({ reducedMotion: "reduce", ...options });
  const tab = await context.newPage();
  tab.setDefaultTimeout(15_000);
  const wrong = [];
  tab.on("console", (message) => {
    if (["error", "warning"].includes(message.type())) wrong.push(`console: ${message.text()}`);
  });
  tab.on("pageerror", (error) => wrong.push(`error: ${error.message}`));
  tab.on("dialog", (dialog) => {
    wrong.push(`dialog: ${dialog.message()}`);
    dialog.dismiss();
  });
  tab.on("request", (request) => {
    const url = new URL(request.url());
    if (url.protocol !== "data:" && url.origin !== new URL(told.url).origin) wrong.push(`request: ${url}`);
  });
  return { context, tab, wrong };
};

/** Checks that a tab is as wide as it is shown, and that nothing went wrong in it. */
export const sound = async (tab, wrong, where) => {
  const [wide, shown] = await tab.evaluate(() => [
    document.documentElement.scrollWidth,
    document.documentElement.clientWidth,
  ]);
  assert.ok(wide <= shown, `${where}: ${wide} px wide, ${shown} px are shown`);
  assert.deepEqual(wrong, [], where);
};

export const shoot = (tab, name) => tab.screenshot({ path: `${told.screenshots}/${name}.png`, fullPage: true });
