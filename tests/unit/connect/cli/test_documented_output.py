"""What pages of ``docs`` show that no cluster of a test prints, made from the values that it tells of."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest

from connect.cli.check.check_file import show_report
from connect.cli.check.findings import CheckFinding, CheckOutcome, CheckReport, Level, SeenCluster
from connect.cli.commands import failover_view
from connect.cli.commands.flow_looks import FlowSeen
from connect.cli.commands.lag_and_status import show_statuses
from connect.cli.commands.plan import drift_as_json, plan_as_json
from connect.cli.console import JsonFormatter
from connect.cli.tables import show_connectors
from connect.core.audit import EVENT, SUBJECT, AuditEntry
from connect.core.model import Restarts, State, Status
from connectors.failover.plan import GroupOutcome, Plan
from connectors.failover.snapshot import How
from connectors.flow_facts import FlowFacts, LagFacts, TaskFacts, VerifiedFacts
from connectors.flow_verdict import judge
from connectors.formats.types import FlowName, TopicPartition
from connectors.inspection.flow_plan import Drift, DriftKind, FlowDrift, FlowPlan, Planned
from connectors.topic_sync.cluster_changes import AlterConfig, CreateTopic
from connectors.verification.report import Difference, DifferenceKind, PartitionResult, VerificationResult
from connectors.verification.report_forms import to_text
from rest.bodies import task_state
from tests.kit.documented import blocks, is_like

AT_MS: Final = 1_795_747_687_000
BEHIND: Final = FlowFacts(
    FlowName("us", "eu"),
    AT_MS,
    heartbeat_ms=AT_MS - 182_000,
    has_worker=False,
    lag=LagFacts(6, 2, 1520, 182_400, 181_000, furthest=TopicPartition("orders", 2), furthest_records=1510),
    file="mm2.properties",
)
CHECKED: Final = CheckReport(
    "mm2.properties",
    "mirror",
    "connect-mirror-maker",
    (
        CheckOutcome(
            "us->eu",
            (
                "mirrors topics orders, payments.*, orders as us.orders, in at most 4 tasks",
                "writes offset syncs to mm2-offset-syncs.eu.internal on us",
                "translates the offsets of groups .*, and does not sync group offsets",
                "writes a heartbeat every 1 s to eu",
                "selects 3 of the 14 topics it can see now: orders, payments.de, payments.fr",
            ),
        ),
        CheckOutcome("eu->us", ("mirrors nothing; writes a heartbeat every 1 s to us",)),
    ),
    (
        SeenCluster("us", "us-kafka:9092", 3, "4.3", "gBu7uKB6RB2sbnuxKp64bA"),
        SeenCluster("eu", "eu-kafka:9092", 1, "4.3", "tcptFHLVQ16lxGNYeTt65g"),
    ),
    (
        CheckFinding(
            Level.ERROR,
            "us->eu, cluster eu: replication factor 3 is too high for 1 broker: cannot create us.checkpoints.internal",
            line=4,
        ),
        CheckFinding(
            Level.WARNING,
            "us->eu.use.defaults.fom is not known and has no effect; is us->eu.use.defaults.from meant?",
            line=7,
        ),
    ),
)


def _plan() -> dict[str, Any]:
    changes = (
        CreateTopic("us.orders", "orders", 3, 2, {"retention.ms": "1000"}),
        AlterConfig("us.items", "retention.ms", "1", "1000"),
    )
    return plan_as_json([FlowPlan("us->eu", tuple(Planned("eu", change) for change in changes))])


def _drift() -> dict[str, Any]:
    return drift_as_json(
        [FlowDrift(FlowPlan("us->eu"), (Drift(DriftKind.EXTRA_PARTITIONS, "eu", "us.orders", "3", "6"),))]
    )


def _failover() -> dict[str, Any]:
    lag = SimpleNamespace(to_json=lambda _: {"partitions": 1, "records": 0})
    move = SimpleNamespace(
        group="orders-mail", source=("orders", 0), source_offset=16, target=("us.orders", 0), before=None, after=16,
        how=How.EXACT, is_done=False,
    )  # fmt: skip
    group = SimpleNamespace(group="orders-mail", notes=())
    snapshot = SimpleNamespace(
        source="us", target="eu", notes=(), is_gone=False, source_error="", copied_until_ms=-1, last_known=None,
        lag=lag, groups=SimpleNamespace(not_mirrored=()), verified=None, verified_error="",
    )  # fmt: skip
    plan = SimpleNamespace(
        snapshot=snapshot, blocked=(), can_go=True, obstacles=(), groups=[group], ready=[group], moves=[move],
        of=lambda outcome: [] if outcome is GroupOutcome.IN_PLACE else None,
    )  # fmt: skip
    return failover_view.as_json(cast(Plan, plan), None)


def _auto_restart() -> dict[str, Any]:
    status = Status(State.FAILED, "worker-1:8083", 7, "...", "4.3.1", Restarts(3, 1_764_003_720_000))
    return dict(task_state(0, status))


def _log_line() -> Any:
    text = "us->eu: us.orders now has 3 partitions"
    record = logging.LogRecord("connectors.topic_sync.cluster_changes", logging.INFO, "", 0, text, None, None)
    vars(record).update({"created": 1_795_747_687.12, EVENT: "topic-created", SUBJECT: "us.orders"})
    return json.loads(JsonFormatter(traces=False).format(record))


def _audit_entry() -> Any:
    entry = AuditEntry(
        "rest", "PUT", "/us/eu/connectors/MirrorSourceConnector/config", "ann", "admin", "MirrorSourceConnector",
        {"topics": ("orders", "orders, payments")}, status=200, at_ms=1_764_208_800_000, worker="10.0.0.5:8083",
    )  # fmt: skip
    return json.loads(entry.to_bytes())


def test_json_is_as_the_page_shows_it() -> None:
    shown = [json.loads(text) for _, text in blocks("operations.md") if text.startswith("{")]
    assert shown == [_plan(), _drift(), _auto_restart(), _log_line(), _audit_entry(), _failover()]


def test_a_verdict_is_as_the_page_shows_it() -> None:
    failed = TaskFacts(1, "FAILED", "worker-1:8083", "OSError: disk full")
    verified = VerifiedFacts(AT_MS - 22_320_000, 133_332, 0, new_offsets=0)
    facts = replace(
        BEHIND, connector="us-eu", connector_state="RUNNING", tasks=(TaskFacts(0, "RUNNING"), failed), has_worker=True,
        rest="http://localhost:8083", verified=verified,
    )  # fmt: skip
    (shown,) = (json.loads(text) for _, text in blocks("rest.md") if '"verdict":' in text)
    assert is_like(judge(facts).to_wire(), shown["verdict"]), json.dumps(judge(facts).to_wire())


def _partition(topic: str, partition: int, records: int, size: int, *found: Difference) -> PartitionResult:
    return PartitionResult(
        topic, partition, f"us.{topic}", partition, records, size, 0, 0, records, records, AT_MS, found, len(found)
    )


def _damaged() -> str:
    """The report of a flow of 6 partitions with three damaged records."""
    first = "'79822 cdca34ca5c3f4db06b6ef238e7330c4cb3be45b59382c1ff93ba7f6e831983aa91...306B"
    source, target = (
        f"'{number} 6341bea86b2765483344861a86988eadce03b63c24c9fe74c392db353365483691...306B"
        for number in (92_041, 82_041)
    )
    missing = f"key 'key 79822', value {first}, timestamp 1795748586490"
    stamp = "timestamp: 1795748600982 against 1795748600983"
    changed = DifferenceKind.CHANGED
    result = VerificationResult(
        "us->eu",
        1_795_748_784_000,
        1_795_748_790_000,
        {},
        (
            _partition(
                "orders", 0, 22_220, 3_450_000, Difference(DifferenceKind.MISSING, "orders", 0, 17_554, None, missing)
            ),
            _partition(
                "orders", 1, 22_221, 3_450_000,
                Difference(changed, "orders", 1, 18_662, 18_669, f"value: {source} against {target}"),
                Difference(changed, "orders", 1, 20_935, 20_942, stamp),
            ),
            *(_partition("customers", one, 22_222, 7_100_000) for one in range(2)),
            *(_partition("payments", one, 22_222, 5_850_000) for one in range(2)),
        ),
        read_bytes=32_800_000,
        read_s=2.3,
    )  # fmt: skip
    return to_text(result, "dde9df966af0149d95196932738a33754a49b88652d63e3c90d7e5155166fe77")


def test_an_equal_report_begins_and_ends_as_the_page_shows_it() -> None:
    (shown,) = (text for _, text in blocks("verify.md") if "--full" in text and text.startswith("$ "))
    partitions = tuple(_partition("orders", one, 22_222, 1) for one in range(6))
    printed = to_text(VerificationResult("us->eu", 1_795_748_993_000, 0, {}, partitions), "").splitlines()
    assert {line for line in shown.splitlines() if not line.startswith(("$ ", "..."))} <= {*printed}


RUNNING: Final = {"state": "RUNNING", "worker_id": "worker-1:8083"}
LINES: Final = {"lines": {"status": {"type": "source", "connector": RUNNING, "tasks": [{"id": 0, **RUNNING}]}}}


@pytest.mark.parametrize(
    ("page", "command", "show"),
    [
        ("operations.md", "check mm2.properties", lambda: show_report(CHECKED)),
        ("operations.md", "status mm2.properties", lambda: show_statuses([FlowSeen(BEHIND, {}, "3 min ago")])),
        ("rest.md", "connectors list", lambda: show_connectors(["lines"], LINES)),
        ("verify.md", "verify mm2.properties --flow 'us->eu' --report verified.html", lambda: print(_damaged())),
    ],
)
def test_a_command_prints_what_its_page_shows(
    page: str, command: str, show: Callable[[], None], capsys: pytest.CaptureFixture[str]
) -> None:
    show()
    printed = "\n".join(line.rstrip() for line in capsys.readouterr().out.rstrip().splitlines())
    assert f"$ heliograph {command}\n{printed}\n" in [text for _, text in blocks(page)], printed


def test_the_last_verification_is_as_the_page_shows_it(capsys: pytest.CaptureFixture[str]) -> None:
    verified = VerifiedFacts(AT_MS - 22_320_000, 133_332, 0, new_offsets=2100)
    show_statuses([FlowSeen(replace(BEHIND, verified=verified), {})])
    assert capsys.readouterr().out.splitlines()[-1] + "\n" in [text for _, text in blocks("verify.md")]
