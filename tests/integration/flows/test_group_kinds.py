"""Groups of every kind, each a JVM of its own: who gets checkpoints, who is moved, and what the log says of it."""

from __future__ import annotations

import asyncio
import re
import subprocess
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from connect.embedded.brokers import QUICK_JVM
from connect.kafka.log.committed_offsets import CLASSIC, CONSUMER, SHARE, GroupListing, list_groups
from connectors.client import TopicPartition, translate_offsets_of
from tests.kit.brokers import KafkaCluster
from tests.kit.clients import cluster_at
from tests.kit.java_program import COORDINATES, java_command, run_tool
from tests.kit.mirror import Mirror
from tests.kit.moving import PLAIN, Feed, committed, flows_of, two_flows
from tests.kit.processes import wait_until
from tests.kit.shared_mirror import GROUPS, SharedMirror

pytestmark = pytest.mark.integration

_DEADLINE_S: Final = 240.0
_READ: Final = 70
_CONSUMER: Final = "org.apache.kafka.tools.consumer.ConsoleConsumer"
_SHARE_CONSUMER: Final = "org.apache.kafka.tools.consumer.ConsoleShareConsumer"
_PROTOCOL: Final = {CLASSIC: "classic", CONSUMER: "consumer"}


class Scene:
    """A topic of the flow of a name, and names of groups."""

    def __init__(self, us: KafkaCluster, eu: KafkaCluster, name: str) -> None:
        self.us, self.eu, self.name = us.bootstrap, eu.bootstrap, name
        self.feed = Feed(us.bootstrap, f"kinds-{name}")
        self.topic = self.feed.topics[PLAIN]
        self.alias = flows_of(name)[0].alias
        self.remote = f"{self.alias}.{self.topic}"

    def properties(self) -> dict[str, str]:
        return {**two_flows(self.us, self.eu, self.name), f"{flows_of(self.name)[1].alias}->eu.enabled": "false"}

    def group(self, label: str) -> str:
        return f"{self.name}-{label}"

    def arguments(self, bootstrap: str, topic: str, label: str, protocol: str) -> list[str]:
        return [
            *("--bootstrap-server", bootstrap, "--topic", topic, "--group", self.group(label)),
            *("--consumer-property", f"group.protocol={protocol}"),
        ]

    def read(self, label: str, kind: str) -> None:
        arguments = self.arguments(self.us, self.topic, label, _PROTOCOL[kind])
        run_tool(_CONSUMER, [*arguments, "--from-beginning", "--max-messages", str(_READ)], heap="256m")

    def share(self, bootstrap: str, topic: str, label: str) -> None:
        place = ["--bootstrap-server", bootstrap, "--topic", topic, "--group", self.group(label)]
        run_tool(_SHARE_CONSUMER, [*place, "--timeout-ms", "4000"], heap="256m")

    @contextmanager
    def member(self, bootstrap: str, topic: str, label: str, kind: str) -> Iterator[None]:
        """Somebody is in a group until this ends."""
        arguments = [*self.arguments(bootstrap, topic, label, _PROTOCOL[kind]), "--from-beginning"]
        command = java_command(COORDINATES, _CONSUMER, arguments, heap="256m", jvm_options=QUICK_JVM)
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as java:
            try:
                wait_until(
                    lambda: (of := self.groups(bootstrap).get(self.group(label))) and of.state == "Stable",
                    _DEADLINE_S,
                    f"{label} has a member",
                )
                yield
            finally:
                java.kill()

    def groups(self, bootstrap: str) -> Mapping[str, GroupListing]:
        async def listed() -> Mapping[str, GroupListing]:
            async with cluster_at(bootstrap) as cluster:
                return await list_groups(cluster)

        return asyncio.run(listed())

    def await_moved(self, label: str) -> None:
        def stands() -> int | None:
            return asyncio.run(committed(self.eu, self.group(label), [self.remote]))[self.remote]

        wait_until(lambda: stands() == _READ, _DEADLINE_S, f"{label} is moved")


def _lines(mirror: Mirror, *parts: str) -> Sequence[str]:
    return [line for line in mirror.log_lines() if all(part in line for part in parts)]


def _prepared(us: KafkaCluster, eu: KafkaCluster, name: str) -> Scene:
    """A topic with records, and on us a group of each kind that has read some."""
    made = Scene(us, eu, name)
    asyncio.run(made.feed.make())
    asyncio.run(made.feed.write(20))
    made.read("old", CLASSIC)
    made.read("new", CONSUMER)
    made.share(made.us, made.topic, "share")
    return made


def test_a_group_of_each_kind(shared: SharedMirror) -> None:
    scene = _prepared(shared.us, shared.eu, GROUPS)
    for label in ("old", "new"):
        scene.await_moved(label)
    shared.mirror.await_line(0, [f"group {scene.group('share')} gets no checkpoints: a share group"], _DEADLINE_S)


@pytest.mark.long
def test_groups_with_members(us: KafkaCluster, eu: KafkaCluster, tmp_path: Path) -> None:
    scene = _prepared(us, eu, uuid.uuid4().hex[:6])
    for label, kind in (("busy-old", CLASSIC), ("busy-new", CONSUMER), ("both", CLASSIC)):
        scene.read(label, kind)
    properties = scene.properties()
    properties[f"{scene.alias}->eu.sync.group.offsets.enabled"] = "false"
    with Mirror(properties, tmp_path) as mirror, ExitStack() as members:
        mirror.start()
        mirror.await_line(0, ["checkpoints for"], _DEADLINE_S)
        wait_until(lambda: scene.remote in _topics(scene), _DEADLINE_S, "the remote topic is there")
        members.enter_context(scene.member(scene.us, scene.topic, "reads", CONSUMER))
        members.enter_context(scene.member(scene.eu, scene.remote, "busy-old", CLASSIC))
        members.enter_context(scene.member(scene.eu, scene.remote, "busy-new", CONSUMER))
        scene.share(scene.eu, scene.remote, "both")
        assert mirror.stop() == 0
        listed = {label: scene.groups(scene.us)[scene.group(label)].kind for label in ("old", "new", "share")}
        assert listed == {"old": CLASSIC, "new": CONSUMER, "share": SHARE}

        properties[f"{scene.alias}->eu.sync.group.offsets.enabled"] = "true"
        mirror.configure(properties)
        start = mirror.log_end()
        mirror.start()
        for label in ("old", "new"):
            scene.await_moved(label)
        for label, why in (
            ("busy-old", "has members"),
            ("busy-new", "has members"),
            ("both", "of another kind (share"),
        ):
            mirror.await_line(start, [f"group {scene.group(label)} is skipped", why], _DEADLINE_S)
        # Their own consumers on eu began at the beginning, and are where they are.
        expected = {scene.group(label) for label in ("old", "new", "busy-old", "busy-new", "both", "reads")}
        props, groups = {"bootstrap.servers": scene.eu}, re.compile(f"{scene.name}-.*")

        def translated() -> Mapping[str, Any] | None:
            """Once the group that still reads has committed, which its consumer does every five seconds."""
            found = translate_offsets_of(props, scene.alias, groups, _DEADLINE_S)
            return found if found.keys() >= expected else None

        places = wait_until(translated, _DEADLINE_S, f"{sorted(expected)} have checkpoints")
        assert places is not None and places.keys() == expected
        assert places[scene.group("new")][TopicPartition(scene.remote, 0)].offset == _READ
        assert all(scene.group("share") in line for line in _lines(mirror, "gets no checkpoints"))
        # Once in the life of a connector or a task; a start begins with the settings of the one before.
        refused = f"group {scene.group('share')} gets no checkpoints: a share group"
        assert len(_lines(mirror, refused)) == 1 + len([line for line in mirror.log_lines(start) if refused in line])
        assert len(_lines(mirror, refused)) <= 3
        for label in ("busy-old", "busy-new", "both"):
            assert 1 <= len(_lines(mirror, f"group {scene.group(label)} is skipped")) <= 2
        assert mirror.stop() == 0
    assert scene.groups(scene.eu)[scene.group("both")].kind == SHARE


def _topics(scene: Scene) -> set[str]:
    async def asked() -> set[str]:
        async with cluster_at(scene.eu) as cluster:
            return set((await cluster.metadata(None)).topics)

    return asyncio.run(asked())
