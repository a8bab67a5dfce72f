"""Copying on a standalone cluster without this project, with passwords: an executor dies, and no secret shows."""

from __future__ import annotations

import asyncio
import os
import sys
import uuid
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.kit.brokers import KafkaCluster
from tests.kit.checker import TopicPair
from tests.kit.mirror import SMALL, Mirror
from tests.kit.processes import Member, Role, gone, wait_until
from tests.kit.spark_cluster import StandaloneSpark, bare_python, compare_under_load, java_options
from tests.kit.topics import make_topics
from tests.kit.writer import Load, Writer

pytestmark = [pytest.mark.integration, pytest.mark.slow]

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
#: One stands in the file, one in the environment.
SECRETS = {"reader": f"planted-{uuid.uuid4().hex}", "writer": f"planted-{uuid.uuid4().hex}"}
VARIABLE = "HELIOGRAPH_TEST_PASSWORD"
LOAD = Load("orders", 4)
ROOT = Path(__file__).parents[2]
DEADLINE_S = 400.0
#: A shell's Spark keeps to warnings, whatever ``spark.log.level`` says, unless a file names a logger.
LOG4J = """
rootLogger.level = info
rootLogger.appenderRef.stderr.ref = stderr
logger.spark.name = org.apache.spark
logger.spark.level = info
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %p %c{1}: %m%n
"""
#: With the logs of everybody at their most talkative.
COMMAND = (
    "import sys; from connect.cli.daemons.connect_mirror_maker import main; sys.argv += ['--log-level', "
    "'DEBUG']; main()"
)


@dataclass
class Scene:
    broker: KafkaCluster
    spark: StandaloneSpark
    mirror: Mirror
    writer: Writer
    events: Path

    @property
    def target_port(self) -> int:
        return int(self.broker.bootstrap_of("SECRET").rpartition(":")[2])

    async def compare(self) -> None:
        await compare_under_load(
            self.mirror, self.writer, self.broker.bootstrap, self.broker.bootstrap, PAIR, DEADLINE_S
        )


PAIR = TopicPair(LOAD.topic, f"us.{LOAD.topic}", LOAD.partitions)


def jaas(name: str, password: str) -> str:
    return f'{PLAIN} required username="{name}" password="{password}";'


def secured() -> KafkaCluster:
    """One broker for both sides: its records are written and judged without a password, and mirrored with one each."""
    users = " ".join(f'user_{name}="{secret}"' for name, secret in SECRETS.items())
    config = {
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.secret.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.secret.plain.sasl.jaas.config": f"{PLAIN} required {users};",
    }
    return KafkaCluster.start("secret", config=config, listeners={"SECRET": "SASL_PLAINTEXT"})


def properties(broker: KafkaCluster, spark: StandaloneSpark, events: Path) -> dict[str, str]:
    talkative = events.with_name("log4j2.properties")
    talkative.write_text(LOG4J)
    sides = {"us": jaas("reader", SECRETS["reader"]), "eu": jaas("writer", f"${{env:{VARIABLE}}}")}
    connections = {
        f"{alias}.{key}": value
        for alias, line in sides.items()
        for key, value in {
            "bootstrap.servers": broker.bootstrap_of("SECRET"),
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": line,
        }.items()
    }
    return {
        "clusters": "us, eu",
        **connections,
        "config.providers": "env",
        "config.providers.env.class": "org.apache.kafka.common.config.provider.EnvVarConfigProvider",
        "us->eu.enabled": "true",
        "us->eu.topics": LOAD.topic,
        "tasks.max": "2",
        "copy.epoch.ms": "5000",
        **SMALL,
        **spark.properties,
        "spark.log.level": "INFO",
        "spark.driver.extraJavaOptions": f"{java_options()} -Dlog4j2.configurationFile={talkative}",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": str(events),
    }


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("standalone")
    events = folder / "events"
    events.mkdir()
    with ThreadPoolExecutor(1) as pool:
        starting = pool.submit(lambda: StandaloneSpark(bare_python(folder / "python")))
        with secured() as broker:
            yield from copying(broker, starting, folder, events)


def copying(broker: KafkaCluster, starting: Future[StandaloneSpark], folder: Path, events: Path) -> Iterator[Scene]:
    """The mirror under load; the cluster has been starting beside the broker."""
    with (
        starting.result() as spark,
        pytest.MonkeyPatch.context() as patch,
        Mirror(properties(broker, spark, events), folder, [sys.executable, "-c", COMMAND]) as mirror,
    ):
        patch.setenv(VARIABLE, SECRETS["writer"])
        asyncio.run(make_topics(broker.bootstrap, {LOAD.topic: LOAD.partitions}))
        with Writer(broker.bootstrap, [LOAD], records_per_s=2000, seed=5) as writer:
            mirror.start()
            yield Scene(broker, spark, mirror, writer, events)
            writer.stop()
            assert mirror.stop() == 0, mirror.log_lines()[-20:]
            mirror.assert_gone()
            wait_until(
                lambda: not spark.find(Role.EXECUTOR), DEADLINE_S, "the application has given its executors back"
            )


async def test_executors_without_this_project_copy_with_the_code_they_are_sent(scene: Scene) -> None:
    await scene.compare()
    environment = wait_until(lambda: a_slices_environment(scene), DEADLINE_S, "slices run on the cluster")
    folders = environment.get("PYTHONPATH", "").split(":")
    assert ROOT not in map(Path, folders), "and do not find the code beside them"


def a_slices_environment(scene: Scene) -> dict[str, str]:
    """Empty where none runs: each epoch ends."""
    for member in scene.spark.slices([scene.target_port]):
        with suppress(psutil.NoSuchProcess):
            return member.process.environ()
    return {}


@pytest.mark.long
async def test_a_killed_executor_costs_nothing(scene: Scene) -> None:
    await scene.compare()
    copying = wait_until(lambda: scene.spark.slices([scene.target_port]), DEADLINE_S, "slices run on the cluster")
    victims = [
        executor
        for executor in scene.spark.find(Role.EXECUTOR)
        if executor.pid in {parent.pid for slice_ in copying for parent in slice_.process.parents()}
    ]
    since = scene.mirror.log_end()
    victims[0].process.kill()
    wait_until(lambda: gone(victims[:1]), DEADLINE_S, "the executor is gone")
    wait_until(lambda: scene.mirror.resumed(since), DEADLINE_S, "a successor has resumed")
    await scene.compare()
    assert not [line for line in scene.mirror.resumed(since) if line.at_least_once]


async def test_no_secret_is_in_an_event_log_a_log_a_command_line_or_an_environment(scene: Scene) -> None:
    await scene.compare()
    wait_until(lambda: scene.spark.slices([scene.target_port]), DEADLINE_S, "slices run on the cluster")
    searched = 0
    for file in (*files(scene.events), *files(scene.spark.folder), scene.mirror.log_file):
        # Not what binds them: an archive of code, sockets, and the file that its user wrote.
        if file.suffix not in (".zip", ".jar"):
            text = content(file)
            searched += bool(text)
            assert_clean(text, str(file))
    assert [file for file in files(scene.events) if b"SparkListenerJobStart" in content(file)], "jobs are logged"
    assert b"Spark: INFO SparkContext" in content(scene.mirror.log_file), "Spark talks"
    assert searched > 3
    worker = scene.mirror.pid
    roles = {Role.SPARK_DRIVER, Role.SPARK_JVM, Role.EXECUTOR, Role.PYTHON_WORKER}

    def whole() -> list[Member]:
        found = [member for member in (*scene.mirror.members(), *scene.spark.members()) if member.pid != worker]
        return found if roles <= {member.role for member in found} else []

    for member in wait_until(whole, DEADLINE_S, "there is a process of every role"):
        try:
            said = " ".join([*member.process.cmdline(), *member.process.environ().values()])
        except psutil.NoSuchProcess:
            continue
        assert_clean(said.encode(), f"{member.role.value} {member.pid}")
    assert SECRETS["writer"] in psutil.Process(worker).environ()[VARIABLE], "the search finds what is there"


def files(folder: Path) -> list[Path]:
    """All below ``folder`` now, while Spark makes and removes some."""
    return [Path(where) / name for where, _, names in os.walk(folder) for name in names]


def content(file: Path) -> bytes:
    """Nothing of what is no file, or no longer there."""
    with suppress(OSError):
        return file.read_bytes() if file.is_file() else b""
    return b""


def assert_clean(said: bytes, where: str) -> None:
    for name, secret in SECRETS.items():
        assert secret.encode() not in said, f"the secret of {name} is in {where}"
