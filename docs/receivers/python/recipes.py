"""Recipes that make a second delivery of an event harmless, on a SQL database.

They are written for SQLite so that they run anywhere; the statements are nearly the same elsewhere.

None of them looks at the number of affected rows: with `SET NOCOUNT ON`, or behind a trigger, a
database reports none or another. They look at what the tables hold.
"""

import json
import sqlite3

from receiver import Refused

TABLES = """
CREATE TABLE IF NOT EXISTS processed_orders (
    order_id INTEGER NOT NULL, cursor TEXT NOT NULL, after TEXT,
    PRIMARY KEY (order_id, cursor));
CREATE TABLE IF NOT EXISTS processed_events (
    poller_name TEXT NOT NULL, event_id TEXT NOT NULL, PRIMARY KEY (poller_name, event_id));
CREATE TABLE IF NOT EXISTS fences (
    poller_name TEXT PRIMARY KEY, generation INTEGER NOT NULL, token INTEGER NOT NULL);
"""


def upsert(database):
    """Recipe: upsert at the sink. A second delivery meets (order_id, cursor) and changes nothing."""

    def take(_batch, event):
        with database:
            database.execute(
                "INSERT INTO processed_orders (order_id, cursor, after) VALUES (?, ?, ?) "
                "ON CONFLICT (order_id, cursor) DO UPDATE SET after = excluded.after",
                (event["pk"]["id"], event["cursor"]["value"], json.dumps(event["after"])),
            )

    return take


def once(database, apply):
    """Recipe: a table of processed events, written in the transaction of the work itself.

    `apply(database, event)` does the work with the same connection. The event's id is a hash of poller,
    key and cursor, so it is the same at each delivery. The fence comes first: an instance whose lease
    was taken over may still be sending, and must not write after its successor.
    """

    def take(batch, event):
        with database:  # one transaction: commits at the end, rolls back on an exception
            admit(database, batch)
            if note(database, batch["poller"], event["id"]):
                apply(database, event)

    return take


def note(database, poller, event_id):
    """Notes an event as processed; returns whether it was not before."""
    key = (poller, event_id)
    try:
        database.execute("INSERT INTO processed_events (poller_name, event_id) VALUES (?, ?)", key)
        return True
    except sqlite3.IntegrityError:
        # A second delivery, if the key is there. Anything else is an error.
        found = "SELECT 1 FROM processed_events WHERE poller_name = ? AND event_id = ?"
        if database.execute(found, key).fetchone() is None:
            raise
        return False


def admit(database, batch):
    """Raises Refused for a lease that is lower than the highest that has written."""
    lease = (batch["generation"], batch["fencing_token"])
    database.execute(
        "INSERT INTO fences (poller_name, generation, token) VALUES (?, ?, ?) "
        "ON CONFLICT (poller_name) DO UPDATE "
        "SET generation = excluded.generation, token = excluded.token "
        "WHERE (excluded.generation, excluded.token) >= (generation, token)",
        (batch["poller"], *lease),
    )
    highest = "SELECT generation, token FROM fences WHERE poller_name = ?"
    generation, token = database.execute(highest, (batch["poller"],)).fetchone()
    if (generation, token) != lease:
        # Naming the lease tells the sender that this is a fence, and no reason to try again.
        fence = {"generation": generation, "fencing_token": token}
        raise Refused(409, "a newer lease has written", fence=fence)
