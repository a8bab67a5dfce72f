"""``heliograph completion SHELL``: the script by which a shell completes commands and options."""

from __future__ import annotations

import os
from argparse import ArgumentParser
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Annotated, Any, Final

import typer
import typer.completion
from typer.core import TyperCommand

_PROGRAM: Final = "heliograph"
_ASKED: Final = "_HELIOGRAPH_COMPLETE"


class Shell(StrEnum):
    """Those that there is a script for."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(shell: Annotated[Shell, typer.Argument(help="Whose script.", show_default=False)]) -> None:
    """Print the script that makes a shell complete commands and options, for its folder of completions.

    bash: ~/.local/share/bash-completion/completions/heliograph; zsh: a file _heliograph in a folder of $fpath; fish:
    ~/.config/fish/completions/heliograph.fish."""
    script = typer.completion.get_completion_script  # type: ignore[attr-defined]  # no word on what it exports
    print(script(prog_name=_PROGRAM, complete_var=_ASKED, shell=shell.value))


def prepare() -> None:
    """Where a shell asks what may come next: let the library know how shells ask."""
    if _ASKED in os.environ:
        typer.completion.completion_init()  # type: ignore[attr-defined]  # as above


class RawCommand(TyperCommand):
    """A command whose one argument takes all words, for another parser to read: options among them are its as well."""

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        (argument,) = self.params
        return argument.shell_complete(ctx, incomplete)


def next_words(parsers: Iterable[ArgumentParser], given: Sequence[str], incomplete: str) -> list[tuple[str, str]]:
    """What may come behind the words ``given`` to one of the parsers, each with its help: options, or the values of
    the last one. Nothing where a file or a name comes."""
    actions = [action for parser in parsers for action in parser._actions]  # argparse tells it nowhere else
    options = {name: action for action in actions for name in action.option_strings}
    last = options.get(given[-1]) if given else None
    if last is not None and last.choices:
        words = {str(choice): "" for choice in last.choices}
    elif incomplete.startswith("-"):
        words = {name: action.help or "" for name, action in options.items()}
    else:
        return []
    return [(word, about) for word, about in words.items() if word.startswith(incomplete)]
