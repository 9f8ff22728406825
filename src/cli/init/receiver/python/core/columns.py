"""Reads the columns of a row from JSON."""

import base64
from decimal import Decimal
from uuid import UUID


class InvalidColumn(ValueError):
    """A column is missing, or is not of the type that the table had when the types were written."""


def column(columns, name, convert, nullable=False):
    """Returns a column, converted."""
    try:
        value = columns[name]
        if value is None:
            if nullable:
                return None
            raise ValueError("it is null")
        return convert(value)
    except (ArithmeticError, KeyError, TypeError, ValueError) as error:
        raise InvalidColumn(f"column `{name}`: {error!r}; if the table has changed, update row.py") from None


def exactly(kind):
    """Returns a function that accepts this type only: `int` cuts off digits, `bool` and `str` accept anything."""

    def read(value):
        if type(value) is not kind:
            raise TypeError(f"expected {kind.__name__}, found {value!r}")
        return value

    return read


boolean = exactly(bool)
integer = exactly(int)
text = exactly(str)


def number(value):
    """Returns a float; JSON may write it without a fraction."""
    return float(integer(value)) if type(value) is int else exactly(float)(value)


def decimal(value):
    """Returns a decimal, which is text in JSON."""
    return Decimal(text(value))


def uuid(value):
    """Returns a UUID."""
    return UUID(text(value))


def from_base64(value):
    """Returns binary data."""
    return base64.b64decode(text(value), validate=True)
