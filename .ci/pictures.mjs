// Creates the pictures of README: docs/pictures/demo.svg from the output of `highwater demo`, and status.png from the
// status page of a running poller. Needs a built program (target/debug/highwater, or the first argument), Python and Chromium.
import { execFileSync, spawn } from "node:child_process";
import { mkdtempSync, mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { dirname, join, resolve } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import { fileURLToPath } from "node:url";

const root = join(dirname(fileURLToPath(import.meta.url)), "..");
const program = resolve(process.argv[2] ?? join(root, "target/debug/highwater"));
const pictures = join(root, "docs/pictures");
mkdirSync(pictures, { recursive: true });

const escape = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");

/** Draws lines of a terminal. */
function terminal(lines) {
  const [letter, height, margin] = [7.83, 19, 18];
  const width = Math.ceil(Math.max(...lines.map((line) => line.length)) * letter) + 2 * margin;
  const rows = lines.map((line, index) => {
    const shade = line.startsWith("$") ? ' fill="#7ee787"' : line.startsWith("lost ") ? ' fill="#ffffff" font-weight="bold"' : "";
    return `<text x="${margin}" y="${margin + height * (index + 0.8)}" xml:space="preserve"${shade}>${escape(line)}</text>`;
  });
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${lines.length * height + 2 * margin}" role="img">
<rect width="100%" height="100%" rx="8" fill="#0d1117"/>
<g font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace" font-size="13" fill="#c9d1d9">
${rows.join("\n")}
</g>
</svg>
`;
}

const demo = execFileSync(program, ["demo"], { encoding: "utf8", stdio: ["ignore", "pipe", "ignore"] });
if (!/^lost +0$/m.test(demo)) throw new Error(`the demo lost rows:\n${demo}`);
writeFileSync(join(pictures, "demo.svg"), terminal(["$ highwater demo", "", ...demo.trimEnd().split("\n")]));

const freePort = () =>
  new Promise((done) => {
    const server = createServer().listen(0, "127.0.0.1", () => {
      const { port } = server.address();
      server.close(() => done(port));
    });
  });

const folder = mkdtempSync(join(tmpdir(), "highwater-pictures-"));
const children = [];
const start = (command, args, env = {}) => {
  const child = spawn(command, args, { cwd: folder, env: { ...process.env, ...env }, stdio: ["pipe", "pipe", "ignore"] });
  children.push(child);
  return child;
};

try {
  const server = start(program, ["devdb", "--flights", "2000", "--sql", "-"]);
  const connection = await new Promise((done) => server.stdout.once("data", (data) => done(String(data).trim())));
  const [receiver, status] = [await freePort(), await freePort()];
  start("python3", [join(root, "docs/receivers/print.py"), String(receiver)]).stdout.resume();
  execFileSync(program, ["init", "flights", "--table", "dbo.flights", "--out", "try"], {
    cwd: folder,
    env: { ...process.env, SqlConnection: connection },
    stdio: "ignore",
  });
  const run = start(program, ["--settings", "try/local.settings.json", "run", "--status", `127.0.0.1:${status}`], {
    FLIGHTS_SCHEDULE: "*/2 * * * * *",
    HIGHWATER__POLLERS__FLIGHTS__HANDLER__KIND: "http",
    HIGHWATER__POLLERS__FLIGHTS__HANDLER__URL: `http://127.0.0.1:${receiver}/flights`,
  });
  run.stdout.resume();
  // Insert a row every half second, so that the page has data.
  for (let id = 1; id <= 40; id++) {
    server.stdin.write(`UPDATE dbo.flights SET dep_delay = ${id} WHERE id = ${id}\n`);
    await pause(500);
  }
  const url = `http://127.0.0.1:${status}/`;
  const page = await (await fetch(url, { redirect: "follow" })).text();
  if (!page.includes("flights")) throw new Error(`the page does not show the poller:\n${page.slice(0, 500)}`);
  const picture = join(pictures, "status.png");
  const options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1240,370", "--virtual-time-budget=3000"];
  execFileSync("chromium", [...options, `--screenshot=${picture}`, url], { stdio: "ignore" });
  if (readFileSync(picture).length < 10_000) throw new Error(`${picture} is empty`);
} finally {
  for (const child of children) child.kill();
  rmSync(folder, { recursive: true, force: true });
}
