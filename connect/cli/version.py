"""``--version`` of every command."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any


def version_line() -> str:
    """What ``--version`` prints."""
    from importlib.metadata import version

    return f"heliograph {version('heliograph')}"


class ShowVersion(argparse.Action):
    """Prints it and ends with 0. argparse's own wants the text beforehand, which takes a moment to find."""

    def __init__(self, option_strings: Sequence[str], dest: str, **settings: Any) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, help="Print the version and exit.", **settings)
        del dest

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        del namespace, values, option_string
        print(version_line())
        parser.exit()
