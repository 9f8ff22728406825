"""Recipes that make a second delivery of an event harmless, on a SQL database.

They are written for SQLite so that they run anywhere; the statements are nearly the same elsewhere.
"""

import json

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
    """Recipe: upsert at the sink. A replay meets (order_id, cursor) and changes nothing."""

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
            inserted = database.execute(
                "INSERT INTO processed_events (poller_name, event_id) VALUES (?, ?) "
                "ON CONFLICT DO NOTHING",
                (batch["poller"], event["id"]),
            )
            if inserted.rowcount == 1:
                apply(database, event)

    return take


def admit(database, batch):
    """Raises Refused for a lease that is lower than the highest that has written."""
    lease = (batch["generation"], batch["fencing_token"])
    raised = database.execute(
        "INSERT INTO fences (poller_name, generation, token) VALUES (?, ?, ?) "
        "ON CONFLICT (poller_name) DO UPDATE "
        "SET generation = excluded.generation, token = excluded.token "
        "WHERE (excluded.generation, excluded.token) >= (generation, token)",
        (batch["poller"], *lease),
    )
    if raised.rowcount != 1:
        raise Refused(409, "a newer lease has written")
