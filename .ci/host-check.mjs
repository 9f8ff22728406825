// Replays the recorded contract of the host against a real Functions host.
//
//   export AzureFunctionsJobHost__logging__logLevel__Function=Information
//   func start --script-root dist 2>&1 | tee -i func.log         # in one terminal
//   node .ci/host-check.mjs --log func.log --function poll       # in another, once it has started
//
// --url is the host's address (http://127.0.0.1:7071), --root the folder that it runs (dist). The handler process is
// found by --root (on Linux), or by --handler PORT; --kill also kills it once, to check that it is restarted.
// Prints one line per case: passed, failed, or by hand (see docs/contributing/host-check.md). Exits with 1 if one failed.
// It delivers pending rows, so use a test table and a test handler.
import { readFileSync, readdirSync, readlinkSync, realpathSync, statSync } from "node:fs";
import http from "node:http";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";

const DATA = join(dirname(fileURLToPath(import.meta.url)), "..", "tests", "host", "data");
const LIMIT_MS = 60_000;

const { values: options } = parseArgs({
  options: {
    url: { type: "string", default: "http://127.0.0.1:7071" },
    root: { type: "string", default: "dist" },
    function: { type: "string", default: "poll" },
    log: { type: "string" },
    handler: { type: "string" },
    kill: { type: "boolean", default: false },
  },
});
const json = (name) => JSON.parse(readFileSync(join(DATA, name), "utf8"));
const name = options.function;

/** Why a case did not hold. */
const hold = (fact, words) => {
  if (!fact) throw new Error(words);
};

const send = (url, { method = "GET", body, headers = {} } = {}) =>
  new Promise((resolve, reject) => {
    const began = Date.now();
    const request = http.request(url, { method, headers, timeout: LIMIT_MS }, (reply) => {
      const chunks = [];
      reply.on("data", (chunk) => chunks.push(chunk));
      reply.on("error", reject);
      reply.on("end", () => {
        const text = Buffer.concat(chunks).toString("utf8");
        resolve({ status: reply.statusCode, type: reply.headers["content-type"] ?? "", text, took: Date.now() - began });
      });
    });
    request.on("timeout", () => request.destroy(new Error(`no answer within ${LIMIT_MS / 1000} s`)));
    request.on("error", reject);
    request.end(body);
  });

/** Waits for what `look` returns; the log of the host is written as it comes. */
const until = async (look, words, limit = LIMIT_MS) => {
  for (const end = Date.now() + limit; Date.now() < end; ) {
    const found = await look();
    if (found) return found;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  throw new Error(`${words} within ${limit / 1000} s`);
};

/** Runs `work` for each of the invocations that the host starts by it, and returns what its log says of them. */
const executed = async (count, work) => {
  hold(options.log, "wants the log of the host: --log FILE");
  const before = readFileSync(options.log, "utf8").length;
  await work();
  const ends = new RegExp(`Executed 'Functions\\.${name}' \\((Succeeded|Failed), Id=([0-9a-f-]+)`, "g");
  const look = () => {
    const found = [...readFileSync(options.log, "utf8").slice(before).matchAll(ends)];
    return found.length >= count && found;
  };
  return await until(look, `the log has not ${count} lines "Executed 'Functions.${name}' (…)"`);
};

const admin = async (body) => {
  const headers = { "content-type": "application/json" };
  const { status, text } = await send(`${options.url}/admin/functions/${name}`, { method: "POST", body, headers });
  hold(status === 202, `the host answered ${status} ${text}, not 202`);
};

const succeed = async (count, work) => {
  const failed = (await executed(count, work)).filter(([, how]) => how !== "Succeeded");
  hold(failed.length === 0, `the host judged an invocation ${failed[0]?.[1]}: look into its log`);
};

/** Finds the process that runs `handler` of the root, and the port that the host gave it. */
const handler = () => {
  if (options.handler) return { port: Number(options.handler) };
  const program = realpathSync(join(options.root, "handler"));
  for (const pid of readdirSync("/proc").filter((entry) => /^\d+$/.test(entry))) {
    try {
      if (readlinkSync(`/proc/${pid}/exe`) !== program) continue;
      const variables = readFileSync(`/proc/${pid}/environ`, "utf8").split("\0");
      const variable = variables.find((one) => one.startsWith("FUNCTIONS_CUSTOMHANDLER_PORT="));
      if (variable) return { pid: Number(pid), port: Number(variable.split("=")[1]) };
    } catch {
      continue; // It has exited, or belongs to another user.
    }
  }
  throw new Error(`no process runs ${program}; name its port with --handler`);
};

const invoke = (body, headers = {}, route = name) =>
  send(`http://127.0.0.1:${handler().port}/${route}`, {
    method: "POST",
    body,
    headers: { "content-type": "application/json; charset=utf-8", ...headers },
  });

/** As the host judges: anything but an object in JSON would hang the invocation, or fail it. */
const judge = ({ status, type, text }) => {
  hold(/^(application|text)\/json/.test(type), `content-type is "${type}"`);
  const body = JSON.parse(text);
  hold(body !== null && typeof body === "object" && !Array.isArray(body), "the body is no object");
  hold("Outputs" in body && Array.isArray(body.Logs) && "ReturnValue" in body, `the body is ${text}`);
  return status;
};

/** A body as it was recorded, for the function that is here. */
const replay = (fixture) => async () => {
  const body = readFileSync(join(DATA, fixture), "utf8").replaceAll('"nightly"', JSON.stringify(name));
  const status = judge(await invoke(body));
  hold(status === 200, `the handler answered ${status}`);
};

const isName = (text) => /^[A-Za-z][A-Za-z0-9_-]{0,127}$/.test(text) && text.toLowerCase() !== "host";
const functionsOf = (root) =>
  readdirSync(root).filter((entry) => statSync(join(root, entry)).isDirectory() && readdirSync(join(root, entry)).includes("function.json"));

/** What can be done without somebody's hands, by case. */
const automatic = {
  "START-01": async () => {
    const running = async () => {
      const reply = await send(`${options.url}/admin/host/status`).catch(() => undefined);
      return reply?.status === 200 && JSON.parse(reply.text).state === "Running";
    };
    await until(running, "the host does not run");
  },
  "START-06": async () => {
    const { port } = handler();
    const run = invoke(readFileSync(join(DATA, "requests/01_scheduled.json")));
    const { took } = await send(`http://127.0.0.1:${port}/`);
    await run;
    hold(took < 100, `the ping took ${took} ms`);
  },
  "REQ-14": () => succeed(1, () => admin('{"input":""}')),
  "REQ-16": () => succeed(1, () => admin('{"input":"{\\"a\\":1}"}')),
  "REQ-31": async () => {
    for (let round = 0; round < 3; round += 1) await replay("requests/01_scheduled.json")();
  },
  "REQ-33": async () => {
    for (const body of ["", "{"]) {
      const status = judge(await invoke(body));
      hold(status === 400, `the handler answered ${status} to "${body}"`);
    }
  },
  "REQ-34": async () => {
    for (const route of ["unknown", name.toUpperCase()]) {
      const { status } = await invoke(readFileSync(join(DATA, "requests/01_scheduled.json")), {}, route);
      hold(status === 404, `the handler answered ${status} to ${route}`);
    }
  },
  "REQ-35": async () => {
    const body = JSON.parse(readFileSync(join(DATA, "requests/01_scheduled.json"), "utf8"));
    body.Metadata.RetryContext = { RetryCount: 1, MaxRetryCount: 3, Exception: { Message: "x".repeat(3 << 20) } };
    const { status } = await invoke(JSON.stringify(body));
    hold(status < 500, `the handler answered ${status}`);
  },
  "RESP-01": () => succeed(1, () => admin("{}")),
  "CONC-01": () => succeed(2, () => Promise.all([admin("{}"), admin("{}")])),
  "PKG-01": async () => {
    const mode = statSync(join(options.root, "handler")).mode & 0o777;
    hold(mode === 0o755, `handler has mode ${mode.toString(8)}`);
    hold(statSync(join(options.root, "host.json")).isFile(), "there is no host.json");
    const names = functionsOf(options.root);
    hold(names.includes(name) && names.every(isName), `the functions are ${names}`);
  },
  "PKG-03": async () => {
    for (const folder of functionsOf(options.root)) {
      const { bindings } = JSON.parse(readFileSync(join(options.root, folder, "function.json"), "utf8"));
      if (!bindings.some(({ type }) => type === "timerTrigger")) continue;
      const [{ name: binding, schedule }] = bindings;
      hold(bindings.length === 1 && /^[A-Za-z][A-Za-z0-9]{0,127}$/.test(binding), `${folder}: its binding`);
      hold(/^%[^%]+%$/.test(schedule) || schedule.trim().split(/\s+/).length === 6, `${folder}: ${schedule}`);
    }
  },
};
const MANUAL = new Set(["REQ-30"]);
for (const { id, fixtures } of json("conformance_cases.json")) {
  const [fixture] = fixtures;
  if (id.startsWith("REQ-") && fixture?.startsWith("requests/") && !MANUAL.has(id)) automatic[id] ??= replay(fixture);
}
if (options.kill) {
  automatic["CRASH-01"] = async () => {
    const { pid } = handler();
    hold(pid, "wants to know the process: leave --handler out");
    process.kill(pid, "SIGKILL");
    const again = () => {
      try {
        return handler().pid !== pid;
      } catch {
        return false;
      }
    };
    await until(again, "the host has not started the handler again");
    const answers = async () => (await send(`http://127.0.0.1:${handler().port}/`).catch(() => undefined)) !== undefined;
    await until(answers, "the handler does not answer");
    await succeed(1, () => admin("{}"));
  };
}

const counts = { passed: 0, failed: 0, "by hand": 0 };
const tell = (id, how, words = "") => {
  counts[how] += 1;
  console.log(`${id.padEnd(9)} ${how.padEnd(8)} ${words}`.trimEnd());
};
for (const { id, when } of json("conformance_cases.json")) {
  if (!(id in automatic)) {
    tell(id, "by hand", when);
    continue;
  }
  try {
    await automatic[id]();
    tell(id, "passed");
  } catch (error) {
    tell(id, "failed", error.message);
  }
}
console.log(Object.entries(counts).map(([how, count]) => `${count} ${how}`).join(", "));
process.exitCode = counts.failed > 0 ? 1 : 0;
