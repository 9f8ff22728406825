"""The columns of @@table@@ as types, written by `highwater init` from the table.

Text, numbers and booleans are as in the JSON. Decimals are `Decimal`, binary values `bytes`. A `datetime` has
microseconds: digits of `datetime2(7)` beyond them are cut off.
"""

from dataclasses import dataclass
from datetime import date, datetime, time  # noqa: F401
from decimal import Decimal  # noqa: F401
from uuid import UUID  # noqa: F401

from core.columns import boolean, column, decimal, from_base64, integer, number, text, uuid  # noqa: F401


@dataclass(frozen=True)
class Key:
    """Identifies a row."""

@@key_fields@@

    @classmethod
    def from_json(cls, columns: dict) -> "Key":
        return cls(
@@key_values@@
        )


@dataclass(frozen=True)
class Row:
    """A row in its current state."""

@@row_fields@@

    @classmethod
    def from_json(cls, columns: dict) -> "Row":
        return cls(
@@row_values@@
        )


@dataclass(frozen=True)
class Change:
    """One change of a row."""

    id: str  # the same on every delivery of this state of the row
    op: str  # `upsert` or `delete`; with change tracking also `insert` and `update`
    key: Key
    row: Row | None  # None for a deleted row

    @classmethod
    def from_json(cls, event: dict) -> "Change":
        after = event["after"]
        row = None if after is None else Row.from_json(after)
        return cls(event["id"], event["op"], Key.from_json(event["pk"]), row)
