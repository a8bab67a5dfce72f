"""Brokers that restart or die, cut or stalled paths, killed or frozen processes: one mirror, equal logs after each."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from tests.kit.fault_plan import BREAKING, Fault, Kind, plan
from tests.kit.faults import FaultRound
from tests.kit.kill import play_round
from tests.kit.pipe import Direction
from tests.kit.processes import Role, wait_until
from tests.kit.proxied import ConnectionState
from tests.kit.proxy import FaultProxy
from tests.kit.requests import PRODUCE
from tests.kit.rounds import Path, Round
from tests.kit.rounds import plan as kill_plan
from tests.kit.stage import Stage
from tests.kit.stored import stored_positions
from tests.kit.writer import Load

pytestmark = [pytest.mark.integration, pytest.mark.slow]

SEED = 11
LOADS = (Load("orders", 3), Load("payments", 2, "zstd", value_bytes=300), Load("clicks", 1, "lz4", batch_records=500))
PARTITIONS = {load.topic: load.partitions for load in LOADS}
REQUEST_TIMEOUT_MS = 2000
DEADLINE_S = 180.0
#: Some of what the fault run makes, at either side.
PATH_FAULTS = [
    replace(fault, lasting_s=1.0)
    for fault in plan(SEED, 14)
    if fault.kind in (Kind.UNANSWERED, Kind.HALF_CLOSE, Kind.LIMIT)
]
#: Each of these kinds once; `make long` makes them at the other side as well.
SOON = {(Kind.UNANSWERED, "TARGET"), (Kind.HALF_CLOSE, "SOURCE"), (Kind.LIMIT, "TARGET")}
#: Each process is killed once, and a slice is frozen; Spark's are killed by `make long`.
BLOWS = kill_plan(
    SEED,
    kills=4,
    stops=1,
    victims=(Role.PYTHON_WORKER, Role.WORKER, Role.SPARK_JVM, Role.SPARK_DRIVER),
    load_bytes=(100_000, 1_000_000),
)
#: A fault between two requests hits nothing, and is made again.
ATTEMPTS = 3
#: What a test sees pass to the target before it makes its fault.
LOAD_BYTES = 150_000


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Two clusters, load, and the one mirror, caught up once; at the end it stops and leaves nothing behind."""
    properties = {
        "us.consumer.request.timeout.ms": str(REQUEST_TIMEOUT_MS),
        "eu.producer.request.timeout.ms": str(REQUEST_TIMEOUT_MS),
        "eu.offset.flush.interval.ms": "200",
        # The worker stays a member while a path to its group stands still.
        "eu.session.timeout.ms": "12000",
        "eu.worker.lease.ms": "9000",
    }
    directory = tmp_path_factory.mktemp("brokers")
    with Stage(
        directory, seed=SEED, loads=LOADS, records_per_s=6_000, source_proxied=True, properties=properties
    ) as stage:
        assert not stage.set_going(DEADLINE_S)
        yield stage
        ending = stage.shut_down()
        assert not ending.faults
        assert ending.comparison.is_exact, "\n".join(ending.comparison.faults)


class Scene:
    """The stage as one test has it: the log and the bytes count from its beginning."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.chance = random.Random(SEED)
        self._log_start = stage.mirror.log_end()

    @property
    def proxy(self) -> FaultProxy:
        return self.stage.proxies[0]

    def under_load(self) -> None:
        loaded = self.stage.passed_bytes() + LOAD_BYTES
        wait_until(lambda: self.stage.passed_bytes() >= loaded, DEADLINE_S, "the mirror copies under load")

    def connections(self, where: Callable[[ConnectionState], bool]) -> set[int]:
        return {state.index for state in self.proxy.connections() if where(state)}

    def until_given_up(self, before: set[int], where: Callable[[ConnectionState], bool]) -> None:
        """Returns once the slices have let go of connections that stand still, and come on others."""
        wait_until(lambda: self.connections(where) - before, DEADLINE_S, "a slice comes on another connection")

    def compare(self) -> None:
        """The copy goes on, catches up and is exact, as are the positions; nothing restarted or took a guess."""
        self.under_load()
        written = self.stage.writer.pause()
        report = self.stage.caught_up(DEADLINE_S)
        assert report.is_exact, "\n".join(report.faults)
        ends = {(topic, index): count for topic, counts in written.items() for index, count in counts.items()}
        wait_until(
            lambda: asyncio.run(stored_positions(self.stage.eu.bootstrap, "us", PARTITIONS)) == ends,
            DEADLINE_S,
            "all positions are stored",
        )
        self.stage.writer.resume()
        assert self.stage.mirror.is_running
        assert not [line for line in self._log() if "at-least-once" in line or "Traceback" in line or " ERROR " in line]

    def _log(self) -> list[str]:
        return self.stage.mirror.log_lines(self._log_start)


@pytest.fixture
def scene(running: Stage) -> Iterator[Scene]:
    opened = Scene(running)
    opened.under_load()
    yield opened
    running.release()


def produces(state: ConnectionState) -> bool:
    return bool(state.requests.get(PRODUCE))


def of_a_slice(state: ConnectionState) -> bool:
    return (state.client_id or "").startswith("connector-producer-")


def restart_target(stage: Stage) -> None:
    stage.eu.stop_node(0)
    stage.eu.start_node(0)


def restart_source(stage: Stage) -> None:
    stage.us.stop_node(0)
    stage.us.start_node(0)


def kill_target(stage: Stage) -> None:
    stage.eu.kill(0)
    stage.eu.start_node(0)


@pytest.mark.parametrize("fault", [restart_source, kill_target, pytest.param(restart_target, marks=pytest.mark.long)])
def test_a_broker_that_goes_and_comes_back_costs_nothing(scene: Scene, fault: Callable[[Stage], None]) -> None:
    fault(scene.stage)
    scene.compare()


@pytest.mark.parametrize("direction", Direction)
def test_connections_to_the_target_that_are_cut_anywhere_cost_nothing(scene: Scene, direction: Direction) -> None:
    """A cut in the answers leaves batches in the log that the mirror was not told of."""
    within_bytes = 200_000 if direction is Direction.REQUESTS else 2_000
    for _ in range(3):
        cut = scene.proxy.cut_after(scene.chance.randint(1, within_bytes), direction, produces)
        wait_until(cut.is_set, DEADLINE_S, f"the path of {direction.value} is cut")
    scene.compare()


@pytest.mark.parametrize("direction", Direction)
def test_what_arrives_after_it_was_given_up_costs_nothing(scene: Scene, direction: Direction) -> None:
    """Requests are sent again elsewhere, and each is in the log once, which the mirror has to find out."""
    before = scene.connections(produces)
    wait_until(lambda: scene.proxy.hold(direction, produces), DEADLINE_S, "a slice that has produced is held")
    scene.until_given_up(before, produces)
    scene.under_load()
    assert scene.stage.kept_bytes(direction)
    scene.stage.release()
    scene.compare()


def _named(fault: Fault) -> str:
    return f"{fault.kind.name}-{fault.side.name}-{fault.direction.name}"


def _long_if(is_long: bool) -> list[pytest.MarkDecorator]:
    return [pytest.mark.long] if is_long else []


@pytest.mark.parametrize(
    "fault",
    [pytest.param(one, id=_named(one), marks=_long_if((one.kind, one.side.name) not in SOON)) for one in PATH_FAULTS],
)
def test_a_path_that_breaks_under_load_costs_nothing(scene: Scene, fault: Fault) -> None:
    for _ in range(ATTEMPTS):
        played = FaultRound(scene.stage, fault, time.monotonic()).play()
        assert not played.faults, played
        assert played.reconnected or fault.kind not in BREAKING
        if played.in_flight_bytes:
            return
    pytest.fail(f"{ATTEMPTS} faults in turn hit nothing")


def test_a_whole_path_that_stands_still_for_longer_than_a_request_may_take_costs_nothing(scene: Scene) -> None:
    """New connections stand still as well, so that nothing can be asked until it is let go."""
    before = scene.connections(of_a_slice)
    assert scene.proxy.hold(Direction.REQUESTS, new_too=True)
    scene.until_given_up(before, of_a_slice)
    scene.stage.release()
    scene.compare()


@pytest.mark.kill
@pytest.mark.parametrize(
    "planned",
    [
        pytest.param(one, id=str(one), marks=_long_if(one.victim in (Role.SPARK_JVM, Role.SPARK_DRIVER)))
        for one in BLOWS
    ],
)
def test_a_blow_leaves_neither_gap_nor_duplicate_nor_disorder(scene: Scene, planned: Round) -> None:
    played = play_round(scene.stage, planned, SEED)
    assert not played.faults, played
    assert played.found_surplus or planned.path is not Path.UNANSWERED, "what was not answered is found at the target"
