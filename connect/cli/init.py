"""``heliograph init``: a few questions, or flags, and a mirror's first files."""

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
    source: Annotated[
        str | None, typer.Option(metavar=_PLACE, help="The cluster to mirror.", show_default=False)
    ] = None,
    target: Annotated[
        str | None, typer.Option(metavar=_PLACE, help="The cluster to mirror it to.", show_default=False)
    ] = None,
    mode: Annotated[
        RunMode | None, typer.Option(help="A process of its own, or connectors in a Connect group.", show_default=False)
    ] = None,
    policy: Annotated[
        Policy | None, typer.Option(help="Topics as ALIAS.topic on the target, or as they are.", show_default=False)
    ] = None,
    topics: Annotated[str | None, typer.Option(metavar="REGEX,...", help="Which topics.", show_default=False)] = None,
    groups: Annotated[str | None, typer.Option(metavar="REGEX,...", help="Which groups.", show_default=False)] = None,
    sync_groups: Annotated[
        bool | None,
        typer.Option(
            "--sync-groups/--no-sync-groups",
            help="Store positions for the groups on the target too.",
            show_default=False,
        ),
    ] = None,
    both_ways: Annotated[
        bool | None, typer.Option("--both-ways/--one-way", help="Mirror back as well.", show_default=False)
    ] = None,
    directory: Annotated[Path, typer.Option("--dir", help="Folder for the files.")] = Path(),
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that are there.")] = False,
) -> None:
    """Write the first files of a mirror: asks what the flags leave open, and nothing where there is no terminal.

    What is written is parsed first, and commented; files that are there stay as they are without --force."""
    from connect.cli.init_files import files

    asks = sys.stdin.isatty()
    places = [
        _answered(each, asks, question, partial(ClusterAddress.parse, key=key), None, key)
        for each, question, key in (
            (source, "Which cluster is mirrored? An alias and its addresses, such as us=us-kafka:9092", "--source"),
            (target, "Which cluster is it mirrored to? Such as eu=eu-kafka:9092", "--target"),
        )
    ]
    answers = _rest(Answers(places[0], places[1]), asks, mode, policy, topics, groups, sync_groups, both_ways)
    written = _written(files(answers), directory, force=force)
    for path in written:
        print(f"wrote {path}")
    if answers.mode is RunMode.DEDICATED:
        print(f"look:  heliograph plan {written[0]}\nstart: heliograph mirror {written[0]}")
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
                raise ConfigError(f"'{text}' is none of {', '.join(kind)}", key) from None

        return parse

    us, eu = begun.source.alias, begun.target.alias
    mode = mode or _answered(
        None, asks, "How does it run: dedicated (a process of its own) or connect (a Connect group)?",
        one_of(RunMode, "--mode"), begun.mode, "--mode",
    )  # fmt: skip
    policy = policy or _answered(
        None, asks, f"What is topic orders of {us} called on {eu}: {us}.orders (default) or orders (identity)?",
        one_of(Policy, "--policy"), begun.policy, "--policy",
    )  # fmt: skip
    return Answers(
        begun.source,
        begun.target,
        mode,
        policy,
        topics or _answered(None, asks, "Which topics? Regular expressions", str, begun.topics, "--topics"),
        groups or _answered(None, asks, "Which consumer groups?", str, begun.groups, "--groups"),
        _yes(sync_groups, asks, f"Are positions of groups stored for them on {eu}, so that they can move at once?"),
        _yes(both_ways, asks and mode is RunMode.DEDICATED, f"Is {eu} mirrored back to {us} as well?"),
    )


def _answered(
    given: str | None, asks: bool, question: str, parse: Callable[[str], T], default: T | None, key: str
) -> T:
    """What a flag says, else a person, else the default; a person is asked until the answer can be used."""
    if given is not None:
        return parse(given)
    if not asks:
        if default is None:
            raise ConfigError(f"{key} is missing, and there is no terminal to ask at", key)
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
    """Write all or none; raises ConfigError where one is there."""
    paths = {directory / name: text for name, text in texts.items()}
    there = [str(path) for path in paths if path.exists()]
    if there and not force:
        raise ConfigError(
            f"{', '.join(there)} is there already; --force overwrites, --dir names another folder", "--force"
        )
    directory.mkdir(parents=True, exist_ok=True)
    for path, text in paths.items():
        path.write_text(text, "utf-8")
    return list(paths)
