"""``heliograph completion SHELL``: the script by which a shell completes commands and options."""

from __future__ import annotations

import os
from enum import StrEnum
from typing import Annotated, Final

import typer
import typer.completion

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
