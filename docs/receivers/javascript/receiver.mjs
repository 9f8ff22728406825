// Receives Highwater's batches: checks the signature, refuses a stale writer, leaves out events that it
// has applied before, and reports which event failed. Node.js 20 or newer; nothing to install.
import { createHmac, timingSafeEqual } from "node:crypto";
import { gunzipSync } from "node:zlib";

// Reject a request that is older or newer than this: it may be a recorded one, sent again.
const TOLERANCE_SECONDS = 5 * 60;
// A small request may unpack to a huge one.
const BODY_BYTES_MAX = 64 * 1024 * 1024;

// Answers the request with this status; no event of it is applied.
export class Refused extends Error {
  constructor(status, reason, details = {}) {
    super(reason);
    this.status = status;
    this.details = details;
  }
}

// This event cannot be applied, and the reason lies in the event itself. Throw it for nothing else: a
// target that is away is not the fault of an event. Let that error pass, so that the answer is 503 and the
// whole batch is redelivered later.
export class EventFailed extends Error {}

// Returns the keys in `text`, secrets `whsec_…` separated by blanks. Call it at start, so that a process
// without secrets does not start.
export function readSecrets(text) {
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

// Throws unless one of the request's signatures is good under one of `keys`.
export function verify(keys, headers, body, now = Date.now()) {
  const id = headers.get("webhook-id") ?? "";
  const timestamp = headers.get("webhook-timestamp") ?? "";
  if (!/^\d+$/.test(timestamp) || Math.abs(now / 1000 - Number(timestamp)) > TOLERANCE_SECONDS) {
    throw new Refused(401, "webhook-timestamp is missing or too far from now");
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
  if (!isGood) throw new Refused(401, "webhook-signature is missing or wrong");
}

// Returns the body as it is signed.
function unpack(headers, raw) {
  // 413 makes the sender halve the batch.
  const tooLarge = new Refused(413, `the body is larger than ${BODY_BYTES_MAX} bytes`);
  if (raw.length > BODY_BYTES_MAX) throw tooLarge;
  const encoding = (headers.get("content-encoding") ?? "identity").trim().toLowerCase();
  if (encoding === "identity") return raw;
  if (encoding !== "gzip") throw new Refused(400, "content-encoding is neither gzip nor identity");
  try {
    return gunzipSync(raw, { maxOutputLength: BODY_BYTES_MAX });
  } catch (error) {
    if (error.code === "ERR_BUFFER_TOO_LARGE") throw tooLarge;
    throw new Refused(400, "the body is not gzip, though content-encoding says so");
  }
}

// Returns the batch in a body of the form `highwater`.
function readBatch(body) {
  let batch;
  try {
    batch = JSON.parse(body.toString("utf8"));
  } catch {
    throw new Refused(400, "the body is not JSON");
  }
  const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
  if (!isObject(batch)) throw new Refused(400, "the body is not an object: expected the form `highwater`");
  const checks = {
    poller: (value) => typeof value === "string",
    generation: Number.isInteger,
    fencing_token: Number.isInteger,
    events: Array.isArray,
  };
  for (const [field, isRight] of Object.entries(checks)) {
    if (!isRight(batch[field])) throw new Refused(400, `\`${field}\` is missing or of the wrong type`);
  }
  if (!batch.events.every((event) => isObject(event) && typeof event.id === "string")) {
    throw new Refused(400, "an event has no `id`");
  }
  return batch;
}

// Remembers the highest lease that wrote, for each poller. An instance that was taken over may still
// be sending; what it sends is older than what its successor has sent. Keep this in your database.
export class Fence {
  #highest = new Map();

  admit({ poller, generation, fencing_token: token }) {
    const highest = this.#highest.get(poller) ?? { generation: 0, token: 0 };
    const isLower = generation < highest.generation || (generation === highest.generation && token < highest.token);
    // Naming the lease tells the sender that this is a fence, and no reason to try again.
    const fence = { generation: highest.generation, fencing_token: highest.token };
    if (isLower) throw new Refused(409, "a newer lease has written", { fence });
    this.#highest.set(poller, { generation, token });
  }
}

// Returns a function from (headers, raw body) to { status, body }. `keys` come from `readSecrets`.
//
// `take(event)` does the work. It throws EventFailed for an event that cannot be applied; any other error
// means that nothing can be applied now. `seen` has the methods `has(id)` and `add(id)`: a table of your
// database, as a `Set` forgets with the process. Both may be asynchronous.
export function receiver({ keys, seen, fence = new Fence(), take }) {
  return async (headers, raw) => {
    const id = headers.get("webhook-id");
    try {
      const body = unpack(headers, raw);
      verify(keys, headers, body);
      const batch = readBatch(body);
      fence.admit(batch);
      return { status: 200, body: { batchItemFailures: await takeInOrder(batch.events, seen, take) } };
    } catch (error) {
      if (error instanceof Refused) {
        console.warn(`batch ${id} refused: ${error.message}`);
        return { status: error.status, body: { error: error.message, ...error.details } };
      }
      // The whole batch is redelivered; the log has the reason.
      console.error(`batch ${id} failed:`, error);
      return { status: 503, body: { error: "the batch cannot be applied now" } };
    }
  };
}

async function takeInOrder(events, seen, take) {
  for (const event of events) {
    if (await seen.has(event.id)) continue;
    try {
      await take(event);
    } catch (error) {
      if (!(error instanceof EventFailed)) throw error;
      console.error(`event ${event.id} failed: ${error.message}`);
      // Everything before it is applied; it and what follows are redelivered.
      return [{ itemIdentifier: event.id }];
    }
    // After the work: a crash between the two repeats the event, and loses none.
    await seen.add(event.id);
  }
  return [];
}
