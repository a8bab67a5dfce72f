"""``heliograph init``, which writes a mirror's first files from flags or answers."""

from __future__ import annotations

import sys
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Final, TypeVar

import typer

from connect.cli.options_and_help import Answers, ClusterAddress, Policy, RunMode
from connect.core.errors import ConfigError

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)
_PLACE: Final = "ALIAS=HOST:PORT,..."


def init(
    source: Annotated[str | None, typer.Option(metavar=_PLACE, help="The source cluster.", show_default=False)] = None,
    target: Annotated[str | None, typer.Option(metavar=_PLACE, help="The target cluster.", show_default=False)] = None,
    mode: Annotated[
        RunMode | None, typer.Option(help="A dedicated process, or connectors in a Connect group.", show_default=False)
    ] = None,
    policy: Annotated[
        Policy | None, typer.Option(help="Name topics ALIAS.topic on the target, or keep names.", show_default=False)
    ] = None,
    topics: Annotated[
        str | None, typer.Option(metavar="REGEX,...", help="Topics to mirror.", show_default=False)
    ] = None,
    groups: Annotated[
        str | None, typer.Option(metavar="REGEX,...", help="Consumer groups.", show_default=False)
    ] = None,
    sync_groups: Annotated[
        bool | None,
        typer.Option(
            "--sync-groups/--no-sync-groups",
            help="Sync group offsets to the target.",
            show_default=False,
        ),
    ] = None,
    both_ways: Annotated[
        bool | None, typer.Option("--both-ways/--one-way", help="Mirror in both directions.", show_default=False)
    ] = None,
    directory: Annotated[Path, typer.Option("--dir", help="Folder for the files.")] = Path(),
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
) -> None:
    """Write the first files of a mirror. On a terminal it asks for missing options; otherwise they have defaults.

    The files are checked and have comments. Existing files are kept without --force."""
    from connect.cli.init_files import files

    asks = sys.stdin.isatty()
    places = [
        _answered(each, asks, question, partial(ClusterAddress.parse, key=key), None, key)
        for each, question, key in (
            (source, "Source cluster: alias and addresses, such as us=us-kafka:9092", "--source"),
            (target, "Target cluster: alias and addresses, such as eu=eu-kafka:9092", "--target"),
        )
    ]
    answers = _rest(Answers(places[0], places[1]), asks, mode, policy, topics, groups, sync_groups, both_ways)
    written = _written(files(answers), directory, force=force)
    for path in written:
        print(f"wrote {path}")
    if answers.mode is RunMode.DEDICATED:
        print(f"check: heliograph plan {written[0]}\nstart: heliograph mirror {written[0]}")
    else:
        print(f"start: connect-distributed {written[0]}")
        for path in written[1:]:
            print(f"then:  heliograph connectors create {path}")


def _rest(
    begun: Answers,
    asks: bool,
    mode: RunMode | None,
    policy: Policy | None,
    topics: str | None,
    groups: str | None,
    sync_groups: bool | None,
    both_ways: bool | None,
) -> Answers:
    def one_of(kind: type[E], key: str) -> Callable[[str], E]:
        def parse(text: str) -> E:
            try:
                return kind(text.strip())
            except ValueError:
                raise ConfigError(f"'{text}' is not one of {', '.join(kind)}", key) from None

        return parse

    us, eu = begun.source.alias, begun.target.alias
    mode = mode or _answered(
        None, asks, "Run as dedicated (its own process) or connect (in a Connect group)?",
        one_of(RunMode, "--mode"), begun.mode, "--mode",
    )  # fmt: skip
    policy = policy or _answered(
        None, asks, f"Name of topic orders of {us} on {eu}: {us}.orders (default) or orders (identity)?",
        one_of(Policy, "--policy"), begun.policy, "--policy",
    )  # fmt: skip
    return Answers(
        begun.source,
        begun.target,
        mode,
        policy,
        topics or _answered(None, asks, "Topics (regular expressions)", str, begun.topics, "--topics"),
        groups or _answered(None, asks, "Consumer groups (regular expressions)", str, begun.groups, "--groups"),
        _yes(sync_groups, asks, f"Sync group offsets to {eu}, so that groups can move at any time?"),
        _yes(both_ways, asks and mode is RunMode.DEDICATED, f"Also mirror {eu} to {us}?"),
    )


def _answered(
    given: str | None, asks: bool, question: str, parse: Callable[[str], T], default: T | None, key: str
) -> T:
    """Return the value of a flag, else the answer to a question, repeated until it is valid, else the default."""
    if given is not None:
        return parse(given)
    if not asks:
        if default is None:
            raise ConfigError(f"{key} is missing, and there is no terminal to ask for it", key)
        return default
    while True:
        try:
            return parse(str(typer.prompt(question, default=None if default is None else str(default))))
        except ConfigError as error:
            print(f"{error.message}", file=sys.stderr)


def _yes(given: bool | None, asks: bool, question: str) -> bool:
    if given is not None or not asks:
        return bool(given)
    return typer.confirm(question, default=False)


def _written(texts: dict[str, str], directory: Path, *, force: bool) -> list[Path]:
    """Write all files or none. Raises ConfigError if one exists."""
    paths = {directory / name: text for name, text in texts.items()}
    there = [str(path) for path in paths if path.exists()]
    if there and not force:
        raise ConfigError(
            f"{', '.join(there)} exists. Overwrite it with --force, or set another folder with --dir", "--force"
        )
    directory.mkdir(parents=True, exist_ok=True)
    for path, text in paths.items():
        path.write_text(text, "utf-8")
    return list(paths)
