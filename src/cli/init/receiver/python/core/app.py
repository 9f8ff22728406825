"""Connects requests with handler.py: settings, signature, once only, statuses."""

import contextlib
import logging
import os
import time

import handler
from core import once
from core.columns import InvalidColumn
from core.receiver import Refused, read_secrets, receive_batch
from row import Change


class Receiver:
    """Answers requests. Create it at start, so that a process without its settings does not start."""

    def __init__(self, secrets, database, handle=None, clock=time.time):
        self.keys = read_secrets(secrets)
        self.database = database
        self.handle = handle or handler.handle
        self.clock = clock
        # Fails now and not at the first request, if the database cannot be opened.
        once.connect(database).close()

    @classmethod
    def from_environment(cls):
        """Reads WEBHOOK_SECRETS, secrets `whsec_…` separated by blanks, and DATABASE, a file."""
        database = os.environ.get("DATABASE")
        if not database:
            raise ValueError("DATABASE is not set: expected the path of a SQLite file")
        return cls(os.environ.get("WEBHOOK_SECRETS"), database)

    def receive(self, headers, raw):
        """Handles a request; returns the status and the object to answer with."""
        return receive_batch(self.keys, headers, raw, self.apply, self.clock)

    def apply(self, batch):
        """Applies a batch; returns the id of the first event that failed, or None."""
        changes = {event["id"]: change_of(event) for event in batch["events"]}
        id, poller, attempt = batch.get("batch_id"), batch["poller"], batch.get("attempt")
        logging.info("batch %s of poller %s, attempt %s: %d events", id, poller, attempt, len(changes))
        with contextlib.closing(once.connect(self.database)) as db:
            return once.apply_once(
                db, batch, lambda event, db: self.handle(changes[event["id"]], db), self.clock()
            )


def change_of(event):
    """Returns an event as a typed change."""
    try:
        return Change.from_json(event)
    except InvalidColumn as error:
        raise Refused(400, f"event {event['id']}: {error}") from None
    except (KeyError, TypeError) as error:
        raise Refused(400, f"event {event['id']} is not of the form `highwater`: {error!r}") from None
