// The receiver against recorded deliveries.
import assert from "node:assert/strict";
import { createHmac } from "node:crypto";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, mock, test } from "node:test";
import { gzipSync } from "node:zlib";
import { InvalidColumn, column, float, int64, integer, parse } from "../src/core/columns.js";
import { RETENTION_SECONDS, connect } from "../src/core/once.js";
import { BODY_BYTES_MAX, EventFailed, Receiver, type Reply } from "../src/core/receive.js";

const DELIVERY = readFileSync("deliveries/batch.json");
const BATCH = JSON.parse(DELIVERY.toString());
const IDS: string[] = BATCH.events.map((event: { id: string }) => event.id);
const SECRET = "whsec_YSBzZWNyZXQgb2YgdGhlIHRlc3RzIGFsb25l";
const OTHER = "whsec_YW5vdGhlciBzZWNyZXQ=";
const NOW = 1_790_000_000;

let folder: string;
let database: string;
let receiver: Receiver;
let failing: Map<string, Error>;

beforeEach(() => {
  for (const method of ["log", "warn", "error"] as const) mock.method(console, method, () => {});
  folder = mkdtempSync(join(tmpdir(), "receiver-"));
  database = join(folder, "db");
  failing = new Map();
  receiver = new Receiver(
    SECRET,
    database,
    async (change, db) => {
      db.prepare("INSERT INTO applied (event_id) VALUES (?)").run(change.id);
      // After the write, which must be undone.
      const failure = failing.get(change.id);
      if (failure) throw failure;
    },
    () => NOW,
  );
  const db = connect(database);
  db.exec("CREATE TABLE applied (number INTEGER PRIMARY KEY, event_id TEXT)");
  db.close();
});

afterEach(() => {
  mock.restoreAll();
  rmSync(folder, { recursive: true });
});

function sign(body: Buffer, secret = SECRET, at = NOW): Map<string, string> {
  const key = Buffer.from(secret.slice("whsec_".length), "base64");
  const signature = createHmac("sha256", key).update(`batch_1.${at}.`).update(body).digest("base64");
  return new Map([
    ["webhook-id", "batch_1"],
    ["webhook-timestamp", String(at)],
    ["webhook-signature", `v1,${signature}`],
  ]);
}

const delivery = (changes: object) => Buffer.from(JSON.stringify({ ...BATCH, ...changes }));

function post(raw: Buffer, headers = sign(raw)): Promise<Reply> {
  return receiver.receive({ get: (name) => headers.get(name) ?? null }, raw);
}

function ids(sql: string): string[] {
  const db = connect(database);
  const rows = db.prepare(sql).all() as { event_id: string }[];
  db.close();
  return rows.map((row) => row.event_id);
}

const applied = () => ids("SELECT event_id FROM applied ORDER BY number");

function assertRejected(status: number, reply: Reply): void {
  assert.equal(reply.status, status, JSON.stringify(reply));
  assert.ok("error" in reply.body);
  assert.deepEqual(applied(), []);
}

test("events are applied in order and once", async () => {
  for (let count = 0; count < 2; count++) {
    assert.deepEqual(await post(DELIVERY), { status: 200, body: { batchItemFailures: [] } });
    assert.deepEqual(applied(), IDS);
  }
});

test("two deliveries at once are applied once", async () => {
  const replies = await Promise.all([post(DELIVERY), post(DELIVERY)]);
  assert.deepEqual(replies.map((reply) => reply.status), [200, 200]);
  assert.deepEqual(applied(), IDS);
});

test("a deleted row has no columns", async () => {
  const reply = await post(delivery({ events: [{ ...BATCH.events[0], op: "delete", after: null }] }));
  assert.equal(reply.status, 200);
});

test("an event that fails keeps those before it", async () => {
  const second = IDS[1]!;
  failing.set(second, new EventFailed("rejected by the target"));
  const body = { batchItemFailures: [{ itemIdentifier: second }] };
  assert.deepEqual(await post(DELIVERY), { status: 200, body });
  assert.deepEqual(applied(), IDS.slice(0, 1));
  failing.clear();
  assert.equal((await post(DELIVERY)).status, 200);
  assert.deepEqual(applied(), IDS);
});

test("any other error undoes the batch", async () => {
  failing.set(IDS[1]!, new Error("the target is away"));
  assertRejected(503, await post(DELIVERY));
  failing.clear();
  assert.equal((await post(DELIVERY)).status, 200);
  assert.deepEqual(applied(), IDS);
});

test("a database that is away is not the fault of a row", async () => {
  receiver.database = join(database, "away");
  assertRejected(503, await post(DELIVERY));
});

test("a wrong signature is rejected", async () => {
  assertRejected(401, await post(DELIVERY, sign(DELIVERY, OTHER)));
  assertRejected(401, await post(DELIVERY, sign(Buffer.from("another body"))));
  assertRejected(401, await post(DELIVERY, new Map()));
  const several = sign(DELIVERY);
  several.set("webhook-signature", `v1,AAAA ${several.get("webhook-signature")}`);
  assert.equal((await post(DELIVERY, several)).status, 200);
});

test("an old request is rejected after five minutes", async () => {
  for (const at of [NOW - 301, NOW + 301]) assertRejected(401, await post(DELIVERY, sign(DELIVERY, SECRET, at)));
  for (const at of [NOW - 300, NOW + 300]) {
    assert.equal((await post(DELIVERY, sign(DELIVERY, SECRET, at))).status, 200);
  }
});

test("what is no batch is rejected", async () => {
  for (const text of ["", "null", "[]", "{"]) assertRejected(400, await post(Buffer.from(text)));
  for (const changes of [
    { poller: null }, { generation: "1" }, { events: {} }, { events: [null] }, { events: [{ id: "1" }] },
  ]) {
    assertRejected(400, await post(delivery(changes)));
  }
});

test("a row of another table is rejected", async () => {
  const reply = await post(delivery({ events: [{ ...BATCH.events[0], after: {} }] }));
  assertRejected(400, reply);
  assert.match(JSON.stringify(reply.body), /column/);
});

test("a bigint keeps its digits", () => {
  const read = (json: string) => column(parse(json) as Record<string, unknown>, "n", int64);
  for (const digits of ["0", "-1", "9007199254740993", "9223372036854775807", "-9223372036854775808"]) {
    assert.equal(read(`{"n":${digits}}`), BigInt(digits));
  }
  for (const wrong of ["1.5", '"1"', "true", "9223372036854775808", "1e300"]) {
    assert.throws(() => read(`{"n":${wrong}}`), InvalidColumn);
  }
  assert.throws(() => column(parse('{"n":9007199254740993}') as Record<string, unknown>, "n", integer), InvalidColumn);
  assert.equal(column(parse('{"n":100000000000000000000}') as Record<string, unknown>, "n", float), 1e20);
});

test("a gzip body is accepted and a false one rejected", async () => {
  for (const encoding of ["gzip", "br"]) {
    assertRejected(400, await post(DELIVERY, sign(DELIVERY).set("content-encoding", encoding)));
  }
  for (const encoding of ["gzip", "GZIP"]) {
    const headers = sign(DELIVERY).set("content-encoding", encoding);
    assert.equal((await post(gzipSync(DELIVERY), headers)).status, 200);
  }
});

test("a body above the limit is answered so that the batch is halved", async () => {
  const large = Buffer.alloc(BODY_BYTES_MAX + 1);
  // The limit comes before the signature.
  const headers = sign(Buffer.from(""));
  assertRejected(413, await post(large, headers));
  assertRejected(413, await post(gzipSync(large, { level: 1 }), headers.set("content-encoding", "gzip")));
});

test("an instance that lost its lease cannot write", async () => {
  assert.equal((await post(delivery({ events: [], fencing_token: BATCH.fencing_token + 1 }))).status, 200);
  const reply = await post(DELIVERY);
  assertRejected(409, reply);
  assert.ok("fence" in reply.body);
});

test("ids are removed after the retention", async () => {
  await post(DELIVERY);
  const later = NOW + RETENTION_SECONDS + 1;
  receiver.clock = () => later;
  const body = delivery({ events: [] });
  assert.equal((await post(body, sign(body, SECRET, later))).status, 200);
  assert.deepEqual(ids("SELECT event_id FROM processed_events"), []);
});

test("a process without its settings does not start", () => {
  for (const secrets of [undefined, "", "bm90IGEgc2VjcmV0", "whsec_", "whsec_?"]) {
    assert.throws(() => new Receiver(secrets, database, () => {}));
  }
});
