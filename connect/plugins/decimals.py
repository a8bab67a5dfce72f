"""Connect's ``Decimal`` (``org.apache.kafka.connect.data.Decimal``): a whole number, and its scale in the schema."""

from __future__ import annotations

from decimal import Decimal
from typing import Final

from connect.api.convert import DataError
from connect.api.source import Schema

#: No longer text is made a whole number by Python, and few bytes such as 1E+999999999 would fill the memory.
_MOST_DIGITS: Final = 4300


def bytes_of_decimal(schema: Schema, value: Decimal) -> bytes:
    """The digits without their point as a big endian two's complement (``Decimal.fromLogical``).

    Java refuses every value of another scale than its schema's. Arithmetic in Python drops places and exponents
    (``Decimal("1E+3")``), so here a value is written at the schema's scale wherever that loses no digit.

    Raises:
        DataError: It would lose one, or there is no scale.
    """
    scale = _scale(schema)
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        raise _no_number(value)
    text = "".join(map(str, digits)).lstrip("0")
    missing = scale + exponent
    if text and len(text) + missing > _MOST_DIGITS:
        raise DataError(f"Decimal value has {len(text) + missing} digits at scale {scale}, which are too many")
    if missing < 0:
        text, lost = text[:missing], text[missing:]
        if lost.strip("0"):
            raise DataError(
                "Decimal value has mismatching scale for given Decimal schema. "
                f"Schema has scale {scale}, value has scale {-exponent}."
            )
    elif text:
        text += "0" * missing
    unscaled = int(text or "0") * (-1 if sign else 1)
    size = (unscaled if unscaled >= 0 else ~unscaled).bit_length() // 8 + 1
    return unscaled.to_bytes(size, "big", signed=True)


def decimal_of_bytes(schema: Schema, data: bytes) -> Decimal:
    """What :func:`bytes_of_decimal` wrote (``Decimal.toLogical``).

    Raises:
        DataError: There is no scale.
    """
    # Not by scaleb, which rounds.
    return Decimal(f"{int.from_bytes(data, 'big', signed=True)}E{-_scale(schema)}")


def number_of_decimal(value: Decimal) -> str:
    """It as a number of JSON, which says its own scale: as in Java that of the schema is not looked at.

    Raises:
        DataError: It is infinite or no number, for which JSON has no words.
    """
    if not value.is_finite():
        raise _no_number(value)
    return str(value)


def _scale(schema: Schema) -> int:
    scale = dict(schema.parameters).get("scale", "")
    if not scale.removeprefix("-").isdecimal():
        raise DataError("Invalid Decimal schema: its parameter scale is missing or no whole number")
    return int(scale)


def _no_number(value: Decimal) -> DataError:
    return DataError(f"{value} is no decimal number")
