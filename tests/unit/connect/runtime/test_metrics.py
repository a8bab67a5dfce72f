"""What is said of workers and their work in the text that Prometheus reads."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.registry import Collector

from connect.core.herder_api import WorkerInfo
from connect.core.metrics import StateTimes
from connect.core.model import NewTopic, State, TaskId
from connect.kafka.group_heartbeat import GroupMeters
from connect.runtime.herder.rebalance_stages import Rebalances
from connect.runtime.task.task_control import Known, Starts, TaskCounters
from connect.runtime.worker_metrics import worker_metrics
from tests.kit.turns import turns_during


def a_worker(group: str, **tasks: State) -> Any:
    """With a connector ``lines`` and tasks of it, by number (``t0``)."""
    counters = TaskCounters(clock=lambda: 60_000)
    counters.changed(State.RUNNING)
    counters.batch_polled(7, 3.0)
    known = Known(
        parts={"connector-class": "Lines", "task-class": "LT", "key-converter-version": "4.3.1"},
        steps=[("transform", "m", "Mask", "4.3")],
    )
    meters = GroupMeters(clock=lambda: 60_000)
    meters.heartbeat_sent()
    meters.took(meters.heartbeat_ms, 0.004)
    runners = {
        TaskId("lines", int(name[1:])): SimpleNamespace(state=state, counters=counters, known=known)
        for name, state in tasks.items()
    }
    return SimpleNamespace(
        config=SimpleNamespace(group_id=group),
        core=SimpleNamespace(
            generation=5,
            leader_url="http://one:8083/",
            protocol="sessioned",
            assignment=SimpleNamespace(connectors=("lines",), tasks=tuple(runners)),
        ),
        made_ms=59_000,
        steady_ms=lambda: 61_000,
        herder=SimpleNamespace(info=WorkerInfo("4.3.1", "ours", None)),
        rebalances=Rebalances(),
        group=SimpleNamespace(meters=meters),
        restarts=SimpleNamespace(totals={"lines": 1, TaskId("lines", 0): 3}),
        audit=SimpleNamespace(topic=NewTopic("audit"), written=2, dropped=1),
        worker=SimpleNamespace(
            connectors={"lines": SimpleNamespace(state=State.RUNNING, known=known)},
            tasks=runners,
            connector_starts=Starts(succeeded=2, failed=1),
            task_starts=Starts(),
        ),
    )


def text_of(*workers: Any) -> str:
    class Once(Collector):
        def collect(self) -> Any:
            return asyncio.run(worker_metrics(cast(Any, workers), 61_000))

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Once())
    return generate_latest(registry).decode()


def test_what_only_grows_is_a_counter_and_every_help_is_a_sentence() -> None:
    lines = text_of(a_worker("g", t0=State.RUNNING)).splitlines()
    types = dict(line.split()[2:] for line in lines if line.startswith("# TYPE"))
    assert {name for name, kind in types.items() if kind == "counter"} == {
        name for name in types if name.endswith("_total")
    }
    helps = [line.split(maxsplit=3)[3] for line in lines if line.startswith("# HELP")]
    assert helps and all(text.endswith(".") and len(text.split()) >= 4 for text in helps)


def test_names_and_labels_are_those_that_the_usual_exporter_gives_java() -> None:
    text = text_of(a_worker("g", t0=State.RUNNING, t1=State.FAILED))
    for line in (
        'kafka_connect_connect_worker_metrics_task_count{group="g"} 2.0',
        'kafka_connect_connect_worker_metrics_connector_startup_attempts_total{group="g"} 3.0',
        'kafka_connect_connector_metrics_status{connector="lines",group="g",status="running"} 1.0',
        'kafka_connect_connector_task_metrics_status{connector="lines",group="g",status="failed",task="1"} 1.0',
        'kafka_connect_connect_worker_metrics_connector_failed_task_count{connector="lines",group="g"} 1.0',
        'kafka_connect_source_task_metrics_source_record_poll_total{connector="lines",group="g",task="0"} 7.0',
        'kafka_connect_connect_worker_rebalance_metrics_epoch{group="g"} 5.0',
        'kafka_connect_connector_metrics_connector_class{connector="lines",connector_class="Lines",group="g"} 1.0',
        'kafka_connect_connector_task_metrics_task_class{connector="lines",group="g",task="1",task_class="LT"} 1.0',
        'kafka_connect_connector_task_metrics_running_ratio{connector="lines",group="g",task="0"} 1.0',
        'kafka_connect_source_task_metrics_source_record_active_count_max{connector="lines",group="g",task="0"} 7.0',
        'kafka_connect_connect_coordinator_metrics_heartbeat_response_time_max{group="g"} 4.0',
        'kafka_connect_connect_coordinator_metrics_last_heartbeat_seconds_ago{group="g"} 1.0',
        'kafka_connect_connect_coordinator_metrics_last_rebalance_seconds_ago{group="g"} -1.0',
        'kafka_connect_app_info_version{group="g",version="4.3.1"} 1.0',
        'kafka_connect_app_info_start_time_ms{group="g"} 59000.0',
        'kafka_connect_connect_worker_rebalance_metrics_connect_protocol{connect_protocol="sessioned",group="g"} 1.0',
        'kafka_connect_connect_worker_metrics_connector_total_task_count{connector="lines",group="g"} 2.0',
    ):
        assert line in text.splitlines()
    assert 'connector_metrics_auto_restart_total{connector="lines",group="g"} 1.0' in text
    assert 'connector_task_metrics_auto_restart_total{connector="lines",group="g",task="0"} 3.0' in text
    assert 'transform="m",transform_class="Mask"} 1.0' in text


def test_several_workers_of_a_process_share_families() -> None:
    text = text_of(a_worker("us-mm2", t0=State.RUNNING), a_worker("eu-mm2"))
    assert text.count("# TYPE kafka_connect_connect_worker_metrics_task_count gauge") == 1
    assert 'kafka_connect_connect_worker_metrics_task_count{group="eu-mm2"} 0.0' in text


def test_the_share_of_the_time_in_a_state() -> None:
    times = StateTimes()
    assert times.ratio(State.RUNNING, 5) == 0.0
    times.changed(State.RUNNING, 1_000)
    times.changed(State.PAUSED, 4_000)
    times.changed(State.RUNNING, 5_000)
    assert (times.ratio(State.RUNNING, 9_000), times.ratio(State.PAUSED, 9_000)) == (7 / 8, 1 / 8)


async def test_others_of_the_loop_have_their_turn_while_many_tasks_are_looked_at() -> None:
    worker = a_worker("g", **{f"t{index}": State.RUNNING for index in range(1000)})
    turns, _ = await turns_during(worker_metrics(cast(Any, [worker]), 61_000))
    assert turns >= 1000
