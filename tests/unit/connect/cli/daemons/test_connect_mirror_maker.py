"""Arguments as Java takes them, and the life of a MirrorMaker under the command."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from connect.cli.daemons import connect_mirror_maker
from connect.cli.daemons.connect_mirror_maker import NotStarted, StopTimedOut, parse_arguments, run, until_next_summary
from connect.core.errors import ClusterUnreachable, ConfigError
from connectors.flow_progress import NOTHING_KNOWN, ClusterContact, Contact
from tests.kit import virtual_time

#: What the command does until it begins a Spark, and which of these libraries it has loaded then.
BEFORE_SPARK = """
import sys
from pathlib import Path
from connect.cli.daemons import connect_mirror_maker as mirror_maker
from connectors.config.mm2_properties import load
engine = mirror_maker._spark(load(Path(sys.argv[1])).flows_to_run(()))
print(type(engine).__name__, *({"aiokafka", "kafka", "rich"} & set(sys.modules)))
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mm2.properties"
    path.write_text("clusters = us, eu\n")
    return path


def test_file_and_clusters_are_read_as_java_reads_them(file: Path) -> None:
    arguments = parse_arguments("connect-mirror-maker", [str(file), "--clusters", "eu", "asia"])
    assert (arguments.file, arguments.clusters, arguments.log_level) == (file, ["eu", "asia"], "INFO")
    assert parse_arguments("connect-mirror-maker", [str(file)]).clusters == ()
    assert parse_arguments("connect-mirror-maker", [str(file), "--cluster", "eu"]).clusters == ["eu"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "mm2.properties"),
        (["{file}", "more"], "more"),
        (["{file}", "--clusters"], "--clusters"),
        (["{file}", "--targets", "eu"], "--targets"),
        (["{file}.not"], "No such file or directory"),
        (["{file}/x"], "Not a directory"),
    ],
)
def test_bad_arguments_exit_with_255_and_say_why(
    arguments: list[str], words: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        parse_arguments("connect-mirror-maker", [each.format(file=file) for each in arguments])
    assert exit_.value.code == 255
    err = capsys.readouterr().err
    assert err.startswith("usage: connect-mirror-maker ")
    assert words in err.splitlines()[-1]


class FakeMirrorMaker:
    """Does what the real one promises, and keeps what happened to it."""

    def __init__(self, start: Callable[[], Any] | BaseException | None = None, *, stop_hangs: bool = False) -> None:
        self.events: list[str] = []
        self.running = asyncio.Event()
        self._start = start
        self._stop_hangs = stop_hangs

    async def start(self) -> None:
        self.events.append("start")
        if isinstance(self._start, BaseException):
            raise self._start
        if self._start is not None:
            await self._start()

    async def run_until(self, stop: asyncio.Event) -> None:
        self.events.append("run")
        self.running.set()
        await stop.wait()

    async def stop(self) -> None:
        self.events.append("stop")
        if self._stop_hangs:
            await asyncio.Event().wait()

    def progress(self) -> list[Any]:
        return []


def makes(*makers: FakeMirrorMaker) -> Callable[[], Any]:
    """A factory that gives these, one a call."""
    return partial(next, iter(makers))


async def watch_nothing(maker: Any) -> None:
    await asyncio.Event().wait()


async def test_it_runs_until_told_to_stop_and_then_stops() -> None:
    maker, stop = FakeMirrorMaker(), asyncio.Event()
    task = asyncio.create_task(run(makes(maker), stop, watch=watch_nothing))
    await maker.running.wait()
    stop.set()
    await asyncio.wait_for(task, 60)
    assert maker.events == ["start", "run", "stop"]


async def test_a_lost_cluster_is_waited_for(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(connect_mirror_maker, "START_DELAYS_S", (0.0, 0.0))
    down = [FakeMirrorMaker(ClusterUnreachable("cluster eu at 10.0.0.1:9092: connection refused")) for _ in range(3)]
    up, stop = FakeMirrorMaker(), asyncio.Event()
    task = asyncio.create_task(run(makes(*down, up), stop, watch=watch_nothing))
    await asyncio.wait_for(up.running.wait(), 60)
    stop.set()
    await task
    assert [maker.events for maker in down] == [["start", "stop"]] * 3
    messages = [record.getMessage() for record in caplog.records]
    assert messages == ["cluster eu at 10.0.0.1:9092: connection refused; retrying in 0 s"] * 3


async def test_a_wrong_setting_is_not_tried_again() -> None:
    maker = FakeMirrorMaker(ConfigError("no broker has the mechanism", key="us.sasl.mechanism"))
    with pytest.raises(NotStarted) as error:
        await run(makes(maker), asyncio.Event(), watch=watch_nothing)
    assert isinstance(error.value.reason, ConfigError)
    assert maker.events == ["start", "stop"]


async def test_a_signal_ends_a_start_that_hangs() -> None:
    starting, stop = asyncio.Event(), asyncio.Event()

    async def hang() -> None:
        starting.set()
        await asyncio.Event().wait()

    maker = FakeMirrorMaker(hang)
    task = asyncio.create_task(run(makes(maker), stop, watch=watch_nothing))
    await starting.wait()
    stop.set()
    await asyncio.wait_for(task, 60)
    assert maker.events == ["start", "stop"]


async def test_a_signal_ends_the_delay_between_two_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect_mirror_maker, "START_DELAYS_S", (3600.0, 3600.0))
    stop, made = asyncio.Event(), asyncio.Event()

    def make() -> Any:
        made.set()
        return FakeMirrorMaker(ClusterUnreachable("cluster eu"))

    task = asyncio.create_task(run(make, stop, watch=watch_nothing))
    await made.wait()
    stop.set()
    await asyncio.wait_for(task, 60)


async def test_a_stop_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect_mirror_maker, "STOP_TIMEOUT_S", 0.0)
    maker, stop = FakeMirrorMaker(stop_hangs=True), asyncio.Event()
    stop_soon = asyncio.create_task(_set_when(maker.running, stop))
    with pytest.raises(StopTimedOut):
        await run(makes(maker), stop, watch=watch_nothing)
    await stop_soon


async def test_an_error_of_the_watcher_stops_the_mirror_and_is_not_lost() -> None:
    maker = FakeMirrorMaker()

    async def fail(_: Any) -> None:
        raise ValueError("cannot draw")

    with pytest.raises(ValueError, match="cannot draw"):
        await run(makes(maker), asyncio.Event(), watch=fail)
    assert maker.events[-1] == "stop"


def test_spark_is_begun_before_the_libraries_of_kafka_are_loaded(tmp_path: Path) -> None:
    """They take longer than all that comes before."""
    file = tmp_path / "mm2.properties"
    file.write_text(
        "clusters = us, eu\nus.bootstrap.servers = a:1\neu.bootstrap.servers = b:1\nus->eu.enabled = true\n"
    )
    answer = subprocess.check_output([sys.executable, "-c", BEFORE_SPARK, file], text=True)
    assert answer.split() == ["SparkEngine"]


async def _set_when(event: asyncio.Event, stop: asyncio.Event) -> None:
    await event.wait()
    stop.set()


@pytest.mark.parametrize(
    ("before", "after", "waited_s"),
    [
        (Contact(ClusterContact(answers=True)), Contact(ClusterContact(answers=False)), 4),
        (Contact(ClusterContact(answers=False)), Contact(ClusterContact(answers=True)), 4),
        (Contact(), Contact(target=ClusterContact(answers=False)), 4),
        (
            NOTHING_KNOWN,
            Contact(ClusterContact(answers=True), ClusterContact(answers=True)),
            10,
        ),  # what a start is about
    ],
)
def test_a_cluster_that_falls_silent_is_summed_up_at_once(before: Contact, after: Contact, waited_s: float) -> None:
    async def wait() -> float:
        clock = asyncio.get_running_loop().time
        await until_next_summary(lambda: [NOTHING_KNOWN, before if clock() < 3.5 else after])
        return clock()

    assert virtual_time.run(wait()) == waited_s
