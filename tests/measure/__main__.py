"""``python -m tests.measure NAME [ARGUMENTS]``: run ``main(arguments) -> int`` of a module; 0 if goals are reached."""

from __future__ import annotations

import importlib
import pkgutil
import sys

import tests.measure


def _names() -> list[str]:
    return [module.name for module in pkgutil.iter_modules(tests.measure.__path__) if module.name != "__main__"]


def main(arguments: list[str]) -> int:
    """Return the measurement's exit status; 2 if there is no such measurement."""
    if not arguments or arguments[0] not in _names():
        print(f"usage: make measure ARGS='NAME [ARGUMENTS]'; NAME is one of: {', '.join(_names()) or 'none yet'}")
        return 2
    status: int = importlib.import_module(f"tests.measure.{arguments[0]}").main(arguments[1:])
    return status


sys.exit(main(sys.argv[1:]))
