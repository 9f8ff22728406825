"""The file to edit: what happens with each change of @@table@@."""

import logging
import sqlite3

from core.receiver import EventFailed  # noqa: F401: raise it for a change that can never be applied
from row import Change


def handle(change: Change, db: sqlite3.Connection) -> None:
    """Applies one change. `db` is in the transaction that also records the change's id: do not commit it.

    Raise EventFailed if this change itself cannot be applied, such as a value that your target rejects. Let every
    other exception pass: the whole batch is then redelivered later.
    """
    if change.row is None:
        logging.info("%s: deleted", change.key)
    else:
        logging.info("%s: %s", change.key, change.row)
