"""Reads the columns of a row from JSON."""

import base64


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


def from_base64(text):
    """Returns binary data."""
    return base64.b64decode(text, validate=True)
