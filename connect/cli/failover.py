"""``heliograph failover``: readers moved from one cluster to the other. Nothing is changed without ``--execute``."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from connect.cli.connectors_view import show_json
from connect.cli.console import EXIT_OK
from connect.core.errors import ConfigError

if TYPE_CHECKING:
    from connect.cli.flow_control import RestControl
    from connectors.failover.preflight import Wish
    from connectors.failover.returning import Failback
    from connectors.failover.steps import Failover, Outcome
    from connectors.flows import Flow, MirrorMakerConfig

_Controls = tuple["RestControl | None", "RestControl | None"]
#: Of a group: letters, digits, and what stands for itself; a dot does in most names.
_NAME: Final = re.compile(r"(?:[\w.-]|\\[^\w])+", re.ASCII)
#: An error, such as a cluster that does not answer.
EXIT_FAILED: Final = 1
#: Something is in the way, or what was moved is not what it should be.
EXIT_NO_GO: Final = 2


@dataclass(frozen=True, slots=True)
class Arguments:
    """As they were given; ``undo`` is a file to be taken back, ``undo_file`` the one to be written."""

    file: Path
    source: str
    target: str
    groups: Sequence[str] = ()
    rest: Sequence[str] = ()
    executes: bool = False
    is_gone: bool = False
    denies_writes: bool = False
    rewinds: bool = False
    leaves_stranded: bool = False
    at: str | None = None
    undo: Path | None = None
    undo_file: Path | None = None
    sample: int = 10
    timeout_s: float = 600.0
    as_json: bool = False
    everything: bool = False
    accepts: Sequence[str] = ()
    topics: Sequence[str] = ()


def run_failover(arguments: Arguments) -> int:
    """Print what would be done, or do it; the exit code: 0 go, or done; 2 no-go; 1 an error.

    Raises ConfigError for arguments or a file that are wrong, and what the clusters raise.
    """
    from connectors.failover.steps import Failover
    from connectors.flows import load

    config = load(arguments.file)
    with ExitStack() as closing:
        controls = find_controls(closing, arguments, config)
        if arguments.undo is not None:
            return asyncio.run(_undo(config, arguments, controls))
        return asyncio.run(_failover(config, arguments, controls, Failover))


def run_failback(arguments: Arguments) -> int:
    """As :func:`run_failover`, with what has to be done for the flow back before."""
    from connectors.failover.returning import Failback
    from connectors.flows import load

    config = load(arguments.file)
    with ExitStack() as closing:
        return asyncio.run(_failover(config, arguments, find_controls(closing, arguments, config), Failback))


def find_controls(closing: ExitStack, arguments: Arguments, config: MirrorMakerConfig) -> _Controls:
    """Of the flow and of the flow back, where ``--rest`` says who to ask.

    Raises ConfigError where nobody runs the flow, or runs it under another name than ``config`` has.
    """
    from connectors.flows import Flow

    if not arguments.rest:
        return None, None
    there, back = (
        Flow(config, source, target)
        for source, target in ((arguments.source, arguments.target), (arguments.target, arguments.source))
    )
    control = _find_control(closing, arguments.rest, there)
    if control is None:
        raise ConfigError(f"none of the workers mirrors {there}", "--rest")
    return control, _find_control(closing, arguments.rest, back)


def _find_control(closing: ExitStack, urls: Sequence[str], flow: Flow) -> RestControl | None:
    """What is stored of a flow is stored under the name that its workers know: the file has to know it too."""
    from connect.cli.flow_control import find_control

    name = flow.connector_config()["name"]
    control = find_control(closing, urls, flow.source, flow.target, name)
    if control is not None and control.name != name:
        raise ConfigError(
            f"the workers that mirror {flow} call their connector {control.name}, and by this file it is {name}: set "
            f"{flow}.name = {control.name}, and beside it their group.id and offset.storage.topic as "
            f"{flow.target}.group.id and {flow.target}.offset.storage.topic",
            f"{flow}.name",
            flow.config.file,
        )
    return control


def tell_on_stderr(line: str) -> None:
    print(f"{datetime.now(UTC):%H:%M:%S} {line}", file=sys.stderr, flush=True)


def wish_of(arguments: Arguments, config: MirrorMakerConfig) -> Wish:
    """Raises ConfigError where a pattern, a time or a word is wrong."""
    from connectors.failover.preflight import ACCEPTABLE, Wish

    if wrong := sorted(set(arguments.accepts) - set(ACCEPTABLE)):
        raise ConfigError(f"{wrong[0]} is nothing that can be accepted, which is {', '.join(ACCEPTABLE)}", "--accept")
    named = frozenset(re.sub(r"\\(.)", r"\1", one) for one in arguments.groups if _NAME.fullmatch(one))
    if arguments.topics and not (arguments.is_gone and arguments.at and named):
        raise ConfigError("it goes with --source-gone, --at, and --group with the name of a group", "--topic")
    return Wish(
        takes=_takes(arguments, config),
        named=named,
        at_ms=None if arguments.at is None else _at_ms(arguments.at),
        topics=frozenset(arguments.topics),
        is_gone=arguments.is_gone,
        rewinds=arguments.rewinds,
        sample=arguments.sample,
        denies_writes=arguments.denies_writes,
        leaves_stranded=arguments.leaves_stranded,
        timeout_s=arguments.timeout_s,
        accepts=frozenset(arguments.accepts),
    )


async def _failover(
    config: MirrorMakerConfig,
    arguments: Arguments,
    controls: tuple[RestControl | None, RestControl | None],
    kind: type[Failover | Failback],
) -> int:
    from connect.cli.failover_view import as_json, show_preflight
    from connectors.failover.site import site

    async with site(config, arguments.source, arguments.target) as place:
        file = arguments.undo_file or Path(f"failover-{arguments.source}-{arguments.target}.undo.json")
        steps = kind(place, wish_of(arguments, config), file, tell_on_stderr, controls)
        looked = await steps.look()
        if not arguments.executes or looked.obstacles:
            if arguments.as_json:
                show_json(as_json(looked, None, None))
            else:
                show_preflight(looked, everything=arguments.everything)
                if not looked.obstacles:
                    print("nothing was changed; --execute does it")
            return EXIT_NO_GO if looked.obstacles else EXIT_OK
        outcome = await steps.run(f"heliograph {kind.__name__.lower()}")
        return show_outcome(outcome, arguments, file)


def show_outcome(outcome: Outcome, arguments: Arguments, file: Path) -> int:
    from connect.cli.failover_view import as_json, show_preflight, show_proofs

    if arguments.as_json:
        show_json(as_json(outcome.looked, outcome.proofs, str(file), outcome.other_undo_files))
    else:
        show_preflight(outcome.looked, everything=arguments.everything, is_done=True)
        show_proofs(outcome.proofs, everything=arguments.everything)
        others = ", ".join(outcome.other_undo_files)
        print(
            f"done: start readers and writers on cluster {arguments.target}; {file} takes it back: heliograph failover "
            f"--from {arguments.source} --to {arguments.target} --undo {file}"
            + (f"; then, in the same way, what was done before the interruption: {others}" if others else "")
        )
    return EXIT_NO_GO if outcome.differs else EXIT_OK


async def _undo(config: MirrorMakerConfig, arguments: Arguments, controls: _Controls) -> int:
    from connectors.failover import undo
    from connectors.failover.lease import hold
    from connectors.failover.site import site
    from connectors.failover.taking_back import take_back

    assert arguments.undo is not None
    record = undo.read(arguments.undo)
    if (record.source, record.target) != (arguments.source, arguments.target):
        raise ConfigError(f"it is of a failover from {record.source} to {record.target}", "--undo", str(arguments.undo))
    async with site(config, arguments.source, arguments.target) as place:
        if not arguments.executes:
            print(
                f"{arguments.undo} takes back {len(record.groups)} offsets of groups, "
                f"{len(record.starts) + len(record.begins)} begins of flows and {len(record.denied)} access rules; "
                "nothing was changed; --execute does it"
            )
            return EXIT_OK
        async with hold(place, "heliograph failover --undo") as lease:
            left = await take_back(place, record, tell_on_stderr, controls, lease.record.denied)
            await lease.store(denied=())
            others = lease.other_undo_files(arguments.undo)
    print(
        f"{arguments.source}->{arguments.target} stays as it is: where the failover has stopped it, start it again "
        "(its mirror, or heliograph connectors resume)"
    )
    for line in left:
        print(f"left as it is: {line}")
    for other in others:
        print(f"{other} takes back what an interrupted run had done besides")
    return EXIT_NO_GO if left else EXIT_OK


def _takes(arguments: Arguments, config: MirrorMakerConfig) -> Callable[[str], bool]:
    from connectors.checkpoint.settings import checkpoint_settings
    from connectors.flows import Connector, Flow

    if not arguments.groups:
        flow = Flow(config, arguments.source, arguments.target)
        of_file = checkpoint_settings(config.resolved(flow.connector_config(Connector.CHECKPOINT)))
        return of_file.group_filter.should_replicate_group
    try:
        patterns = [re.compile(one) for one in arguments.groups]
    except re.error as error:
        raise ConfigError(f"this is no regular expression: {error}", "--group") from None
    return lambda group: any(pattern.fullmatch(group) for pattern in patterns)


def _at_ms(text: str) -> int:
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"'{text}' is no time such as 2026-11-20T11:00Z", "--at") from None
    if when.tzinfo is None:
        raise ConfigError(f"'{text}' names no zone; a Z behind it is UTC", "--at")
    if when.timestamp() < 0:
        # Kafka's -1 and -2 stand for the end and the beginning of a log.
        raise ConfigError(f"'{text}' is before 1970, and no record is", "--at")
    return int(when.timestamp() * 1000)
