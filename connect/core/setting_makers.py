"""Short ways to declare the settings that most declarations consist of."""

from __future__ import annotations

from connect.core.config import Check, Importance, Required, Setting, Type, Value


def integer(
    name: str, default: int | None, doc: str, check: Check | None = None, level: Importance = Importance.LOW
) -> Setting:
    return Setting(name, Type.INT, default, doc, check, level)


def long(name: str, default: int, doc: str, check: Check | None = None, level: Importance = Importance.LOW) -> Setting:
    return Setting(name, Type.LONG, default, doc, check, level)


def text(
    name: str, default: Value | Required, doc: str, level: Importance = Importance.LOW, check: Check | None = None
) -> Setting:
    return Setting(name, Type.STRING, default, doc, check, level)
