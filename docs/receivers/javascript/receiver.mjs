// Receives Highwater's batches: checks the signature, refuses a stale writer, leaves out events that it
// has taken before, and tells which event failed. Node.js 20 or newer; nothing to install.
import { createHmac, timingSafeEqual } from "node:crypto";
import { gunzipSync } from "node:zlib";

// A request that is older or younger than this may be one that somebody kept and sends again.
const TOLERANCE_SECONDS = 5 * 60;
// A small request may unpack to a huge one.
const BODY_BYTES_MAX = 64 * 1024 * 1024;

export class Refused extends Error {
  constructor(status, reason) {
    super(reason);
    this.status = status;
  }
}

// Throws unless one of the request's signatures is good under one of `secrets`, each `whsec_…`.
export function verify(secrets, headers, body, now = Date.now()) {
  const id = headers.get("webhook-id") ?? "";
  const timestamp = headers.get("webhook-timestamp") ?? "";
  if (!(Math.abs(now / 1000 - Number(timestamp)) <= TOLERANCE_SECONDS)) {
    throw new Refused(401, "webhook-timestamp is missing or too far from now");
  }
  const given = (headers.get("webhook-signature") ?? "").split(" ");
  const isGood = secrets.some((secret) => {
    const key = Buffer.from(secret.replace(/^whsec_/, ""), "base64");
    const wanted = createHmac("sha256", key).update(`${id}.${timestamp}.`).update(body).digest();
    return given.some((signature) => {
      const [version, encoded = ""] = signature.split(",", 2);
      const got = Buffer.from(encoded, "base64");
      return version === "v1" && got.length === wanted.length && timingSafeEqual(got, wanted);
    });
  });
  if (!isGood) throw new Refused(401, "webhook-signature is missing or wrong");
}

// Remembers the highest lease that wrote, for each poller. An instance that was taken over may still
// be sending; what it sends is older than what its successor has sent. Keep this in your database.
export class Fence {
  #highest = new Map();

  admit({ poller, generation, fencing_token: token }) {
    const highest = this.#highest.get(poller) ?? { generation: 0, token: 0 };
    const isLower = generation < highest.generation || (generation === highest.generation && token < highest.token);
    if (isLower) throw new Refused(409, "a newer lease has written");
    this.#highest.set(poller, { generation, token });
  }
}

// Returns a function from (headers, raw body) to { status, body }.
//
// `take(event)` does the work and throws if it cannot; `seen` has the methods `has(id)` and `add(id)`: a
// table of your database, as a `Set` forgets with the process. Both may be asynchronous.
export function receiver({ secrets, seen, fence = new Fence(), take }) {
  return async (headers, raw) => {
    try {
      const packed = headers.get("content-encoding") === "gzip";
      const body = packed ? gunzipSync(raw, { maxOutputLength: BODY_BYTES_MAX }) : raw;
      verify(secrets, headers, body);
      const batch = JSON.parse(body.toString("utf8"));
      fence.admit(batch);
      return { status: 200, body: { batchItemFailures: await takeInOrder(batch.events, seen, take) } };
    } catch (error) {
      if (error instanceof Refused) return { status: error.status, body: { error: error.message } };
      if (error instanceof SyntaxError || error instanceof RangeError) {
        return { status: 400, body: { error: "the body cannot be read" } };
      }
      // Worth another attempt.
      return { status: 500, body: { error: error.message } };
    }
  };
}

async function takeInOrder(events, seen, take) {
  for (const event of events) {
    if (await seen.has(event.id)) continue;
    try {
      await take(event);
    } catch (error) {
      console.error(`event ${event.id} failed: ${error.message}`);
      // Everything before it is taken; it and what follows come again.
      return [{ itemIdentifier: event.id }];
    }
    // After the work: a crash between the two repeats the event, and loses none.
    await seen.add(event.id);
  }
  return [];
}
