// Starts a handler process several times and prints how long each took to its first answer.
//
// The process gets the settings of one poller with a file store, as under the Functions host. The
// port is polled in a tight loop, without sleeping.
import { spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import http from "node:http";
import net from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";

const ROUNDS = 20;
const [binary] = process.argv.slice(2);

const freePort = () =>
  new Promise((resolve) => {
    const server = net.createServer().listen(0, "127.0.0.1", () => {
      const { port } = server.address();
      server.close(() => resolve(port));
    });
  });

const answers = (port) =>
  new Promise((resolve) => {
    const request = http.get({ host: "127.0.0.1", port, path: "/", agent: false }, (reply) => {
      reply.resume();
      resolve(true);
    });
    request.on("error", () => resolve(false));
  });

async function round(folder) {
  const port = await freePort();
  const poller = "HIGHWATER__POLLERS__ORDERS";
  const child = spawn(binary, [], {
    stdio: "ignore",
    env: {
      FUNCTIONS_CUSTOMHANDLER_PORT: String(port),
      HIGHWATER__STATE__STORE: "file",
      HIGHWATER__STATE__FOLDER: folder,
      Sql: "Server=127.0.0.1,1;Database=shop;User ID=me;Password=x",
      [`${poller}__SOURCE__CONNECTION`]: "Sql",
      [`${poller}__SOURCE__TABLE`]: "dbo.orders",
      [`${poller}__SOURCE__CURSOR`]: "version",
      [`${poller}__SOURCE__KEY`]: "id",
      [`${poller}__HANDLER__KIND`]: "http",
      [`${poller}__HANDLER__URL`]: "http://127.0.0.1:1/",
    },
  });
  const began = process.hrtime.bigint();
  const limit = began + 5_000_000_000n;
  while (!(await answers(port))) {
    if (process.hrtime.bigint() > limit) throw new Error("no answer within 5 s");
  }
  const milliseconds = Number(process.hrtime.bigint() - began) / 1e6;
  child.kill("SIGKILL");
  return milliseconds;
}

const folder = mkdtempSync(join(tmpdir(), "highwater-"));
const times = [];
for (let n = 0; n < ROUNDS; n += 1) times.push(await round(folder));
rmSync(folder, { recursive: true });
times.sort((a, b) => a - b);
const show = (value) => value.toFixed(1);
console.log(
  `first answer        ${show(times[ROUNDS / 2])} ms median, ` +
    `${show(times[0])} to ${show(times[ROUNDS - 1])} ms over ${ROUNDS} starts`,
);
