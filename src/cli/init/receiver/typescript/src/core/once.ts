// Applies each event once, on SQLite. The statements are nearly the same on other databases.
//
// One transaction holds the work of a batch and the ids of its events. A savepoint around each event undoes the work of
// an event that fails; everything before it is committed. Whether an event was seen before is decided by its id
// in the table, and never by a number of affected rows.
import { DatabaseSync } from "node:sqlite";
import { type Batch, EventFailed, type Handle, Rejected } from "./receive.js";

const TABLES = `
CREATE TABLE IF NOT EXISTS processed_events (
    poller_name TEXT NOT NULL, event_id TEXT NOT NULL, processed_at INTEGER NOT NULL,
    PRIMARY KEY (poller_name, event_id));
CREATE INDEX IF NOT EXISTS processed_events_by_time ON processed_events (processed_at);
CREATE TABLE IF NOT EXISTS fences (
    poller_name TEXT PRIMARY KEY, generation INTEGER NOT NULL, token INTEGER NOT NULL);
PRAGMA busy_timeout = 30000;
`;
// An event is redelivered within hours. Keep ids longer than the longest time that a poller may be paused.
export const RETENTION_SECONDS = 30 * 24 * 60 * 60;

export function connect(path: string): DatabaseSync {
  const db = new DatabaseSync(path);
  db.exec(TABLES);
  return db;
}

// Applies a batch; returns the id of the first event that failed, or null.
export async function applyOnce(db: DatabaseSync, batch: Batch, handle: Handle, now: number): Promise<string | null> {
  db.exec("BEGIN IMMEDIATE");
  try {
    admit(db, batch);
    const failed = await applyInOrder(db, batch, handle, now);
    db.prepare("DELETE FROM processed_events WHERE processed_at < ?").run(Math.floor(now) - RETENTION_SECONDS);
    db.exec("COMMIT");
    return failed;
  } catch (error) {
    db.exec("ROLLBACK");
    throw error;
  }
}

async function applyInOrder(db: DatabaseSync, batch: Batch, handle: Handle, now: number): Promise<string | null> {
  for (const change of batch.changes) {
    db.exec("SAVEPOINT event");
    try {
      if (record(db, batch.poller, change.id, now)) await handle(change, db);
    } catch (error) {
      if (!(error instanceof EventFailed)) throw error;
      console.error(`event ${change.id} of poller ${batch.poller} failed: ${error.message}`);
      db.exec("ROLLBACK TO event");
      return change.id;
    }
    db.exec("RELEASE event");
  }
  return null;
}

// Records an event as processed; returns whether it is new.
function record(db: DatabaseSync, poller: string, event: string, now: number): boolean {
  // The transaction holds the database's write lock, so nothing comes between these two.
  const found = "SELECT 1 FROM processed_events WHERE poller_name = ? AND event_id = ?";
  if (db.prepare(found).get(poller, event) !== undefined) return false;
  db.prepare("INSERT INTO processed_events VALUES (?, ?, ?)").run(poller, event, Math.floor(now));
  return true;
}

// Rejects a batch of an instance that lost its lease: it must not write after its successor.
function admit(db: DatabaseSync, { poller, generation, fencingToken }: Batch): void {
  const highest = db.prepare("SELECT generation, token FROM fences WHERE poller_name = ?").get(poller) as
    | { generation: number; token: number }
    | undefined;
  const isLower =
    highest !== undefined &&
    (generation < highest.generation || (generation === highest.generation && fencingToken < highest.token));
  if (isLower) {
    const fence = { generation: highest.generation, fencing_token: highest.token };
    throw new Rejected(409, "a newer lease has written", { fence });
  }
  db.prepare("INSERT OR REPLACE INTO fences VALUES (?, ?, ?)").run(poller, generation, fencingToken);
}
