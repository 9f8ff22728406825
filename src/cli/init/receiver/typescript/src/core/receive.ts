// Answers a request: signature, limits, parsing, statuses.
import { createHmac, timingSafeEqual } from "node:crypto";
import { DatabaseSync } from "node:sqlite";
import { gunzipSync } from "node:zlib";
import { type Change, changeFromJson } from "../row.js";
import { InvalidColumn, column, integer, object, parse, text } from "./columns.js";
import { applyOnce, connect } from "./once.js";

// Reject a request that is older or newer than this: it may be a recorded one, sent again.
const TOLERANCE_SECONDS = 5 * 60;
// A small request may unpack to a huge one.
export const BODY_BYTES_MAX = 64 * 1024 * 1024;

// This event cannot be applied, and the reason lies in the event itself. Throw it for nothing else: any other error
// means that nothing can be applied now, so that the whole batch is redelivered later.
export class EventFailed extends Error {}

// The request is answered with this status; no event of it is applied.
export class Rejected extends Error {
  constructor(
    readonly status: number,
    reason: string,
    readonly details: object = {},
  ) {
    super(reason);
  }
}

export interface Batch {
  poller: string;
  generation: number;
  fencingToken: number;
  changes: Change[];
}

export interface Reply {
  status: number;
  body: object;
}

export interface Headers {
  get(name: string): string | null;
}

export type Handle = (change: Change, db: DatabaseSync) => Promise<void> | void;

// Answers requests. Create it at start, so that a process without its settings does not start.
export class Receiver {
  readonly #keys: Buffer[];
  #last: Promise<unknown> = Promise.resolve();

  constructor(
    secrets: string | undefined,
    public database: string,
    private readonly handle: Handle,
    public clock: () => number = () => Date.now() / 1000,
  ) {
    this.#keys = readSecrets(secrets);
    if (!database) throw new Error("DATABASE is not set: expected the path of a SQLite file");
    connect(database).close();
  }

  async receive(headers: Headers, raw: Buffer): Promise<Reply> {
    const id = headers.get("webhook-id");
    try {
      const now = this.clock();
      const body = unpack(headers, raw);
      verify(this.#keys, headers, body, now);
      const batch = readBatch(body);
      const attempt = headers.get("x-highwater-attempt");
      console.log(`batch ${id} of poller ${batch.poller}, attempt ${attempt}: ${batch.changes.length} events`);
      const failed = await this.#inTurn(() => this.#apply(batch, now));
      // Everything before it is applied; it and what follows are redelivered.
      return { status: 200, body: { batchItemFailures: failed === null ? [] : [{ itemIdentifier: failed }] } };
    } catch (error) {
      if (error instanceof Rejected) {
        console.warn(`batch ${id} rejected: ${error.message}`);
        return { status: error.status, body: { error: error.message, ...error.details } };
      }
      // The whole batch is redelivered; the log has the reason.
      console.error(`batch ${id} failed:`, error);
      return { status: 503, body: { error: "the batch cannot be applied now" } };
    }
  }

  async #apply(batch: Batch, now: number): Promise<string | null> {
    const db = connect(this.database);
    try {
      return await applyOnce(db, batch, this.handle, now);
    } finally {
      db.close();
    }
  }

  // A transaction that waits for another one of this process would block it.
  #inTurn<T>(work: () => Promise<T>): Promise<T> {
    const turn = this.#last.then(work, work);
    this.#last = turn;
    return turn;
  }
}

function readSecrets(text: string | undefined): Buffer[] {
  const secrets = (text ?? "").split(/\s+/).filter(Boolean);
  if (secrets.length === 0) {
    throw new Error("WEBHOOK_SECRETS is not set: expected secrets `whsec_…`, separated by blanks");
  }
  return secrets.map((secret, index) => {
    const encoded = /^whsec_([A-Za-z0-9+/]+={0,2})$/.exec(secret)?.[1];
    if (!encoded) throw new Error(`secret ${index + 1} of WEBHOOK_SECRETS is not \`whsec_\` and base64`);
    return Buffer.from(encoded, "base64");
  });
}

// Returns the body as it is signed.
function unpack(headers: Headers, raw: Buffer): Buffer {
  // 413 makes the sender halve the batch.
  const tooLarge = new Rejected(413, `the body is larger than ${BODY_BYTES_MAX} bytes`);
  if (raw.length > BODY_BYTES_MAX) throw tooLarge;
  const encoding = (headers.get("content-encoding") ?? "identity").trim().toLowerCase();
  if (encoding === "identity") return raw;
  if (encoding !== "gzip") throw new Rejected(400, "content-encoding is neither gzip nor identity");
  try {
    return gunzipSync(raw, { maxOutputLength: BODY_BYTES_MAX });
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ERR_BUFFER_TOO_LARGE") throw tooLarge;
    throw new Rejected(400, "the body is not gzip, though content-encoding says so");
  }
}

// Throws unless one of the request's signatures is good under one of `keys`.
function verify(keys: Buffer[], headers: Headers, body: Buffer, now: number): void {
  const id = headers.get("webhook-id") ?? "";
  const timestamp = headers.get("webhook-timestamp") ?? "";
  if (!/^\d+$/.test(timestamp) || Math.abs(Math.floor(now) - Number(timestamp)) > TOLERANCE_SECONDS) {
    throw new Rejected(401, "webhook-timestamp is missing or too far from now");
  }
  const given = (headers.get("webhook-signature") ?? "").split(" ");
  const isGood = keys.some((key) => {
    const wanted = createHmac("sha256", key).update(`${id}.${timestamp}.`).update(body).digest();
    return given.some((signature) => {
      const [version, encoded = ""] = signature.split(",", 2);
      const got = Buffer.from(encoded, "base64");
      return version === "v1" && got.length === wanted.length && timingSafeEqual(got, wanted);
    });
  });
  if (!isGood) throw new Rejected(401, "webhook-signature is missing or wrong");
}

// Returns the batch in a body of the form `highwater`.
function readBatch(body: Buffer): Batch {
  let json: unknown;
  try {
    json = parse(body.toString("utf8"));
  } catch {
    throw new Rejected(400, "the body is not JSON");
  }
  try {
    const batch = object(json);
    if (batch === undefined || !Array.isArray(batch.events)) {
      throw new Rejected(400, "the body is no batch of the form `highwater`");
    }
    return {
      poller: column(batch, "poller", text),
      generation: column(batch, "generation", integer),
      fencingToken: column(batch, "fencing_token", integer),
      changes: batch.events.map((event) => changeFromJson(object(event) ?? {})),
    };
  } catch (error) {
    if (error instanceof InvalidColumn) throw new Rejected(400, error.message);
    throw error;
  }
}
