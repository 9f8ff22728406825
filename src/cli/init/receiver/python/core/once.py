"""Applies each event once, on SQLite. The statements are nearly the same on other databases.

One transaction holds the work of a batch and the ids of its events. A savepoint around each event undoes the work of
an event that fails; everything before it is committed. Whether an event was seen before is decided by its id in
the table, and never by a number of affected rows.
"""

import logging
import sqlite3

from core.receiver import EventFailed, Refused

TABLES = """
CREATE TABLE IF NOT EXISTS processed_events (
    poller_name TEXT NOT NULL, event_id TEXT NOT NULL, processed_at INTEGER NOT NULL,
    PRIMARY KEY (poller_name, event_id));
CREATE INDEX IF NOT EXISTS processed_events_by_time ON processed_events (processed_at);
CREATE TABLE IF NOT EXISTS fences (
    poller_name TEXT PRIMARY KEY, generation INTEGER NOT NULL, token INTEGER NOT NULL);
"""
# An event is redelivered within hours. Keep ids longer than the longest time that a poller may be paused.
RETENTION_SECONDS = 30 * 24 * 60 * 60


def connect(path):
    """Opens the database; transactions begin and end explicitly."""
    db = sqlite3.connect(path, timeout=30, isolation_level=None)
    db.executescript(TABLES)
    return db


def apply_once(db, batch, handle, now):
    """Applies a batch with `handle(event, db)`; returns the id of the first event that failed, or None."""
    poller, failed = batch["poller"], None
    db.execute("BEGIN IMMEDIATE")
    try:
        admit(db, batch)
        for event in batch["events"]:
            db.execute("SAVEPOINT event")
            try:
                if record(db, poller, event["id"], now):
                    handle(event, db)
            except EventFailed as error:
                logging.error("event %s of poller %s failed: %s", event["id"], poller, error)
                db.execute("ROLLBACK TO event")
                failed = event["id"]
                break
            db.execute("RELEASE event")
        db.execute("DELETE FROM processed_events WHERE processed_at < ?", (int(now) - RETENTION_SECONDS,))
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
    return failed


def record(db, poller, event_id, now):
    """Records an event as processed; returns whether it is new."""
    try:
        db.execute("INSERT INTO processed_events VALUES (?, ?, ?)", (poller, event_id, int(now)))
        return True
    except sqlite3.IntegrityError:
        found = "SELECT 1 FROM processed_events WHERE poller_name = ? AND event_id = ?"
        if db.execute(found, (poller, event_id)).fetchone() is None:
            raise
        return False


def admit(db, batch):
    """Rejects a batch of an instance that lost its lease: it must not write after its successor."""
    lease = (batch["generation"], batch["fencing_token"])
    found = "SELECT generation, token FROM fences WHERE poller_name = ?"
    highest = db.execute(found, (batch["poller"],)).fetchone() or lease
    if lease < highest:
        fence = {"generation": highest[0], "fencing_token": highest[1]}
        raise Refused(409, "a newer lease has written", fence=fence)
    db.execute("INSERT OR REPLACE INTO fences VALUES (?, ?, ?)", (batch["poller"], *lease))
