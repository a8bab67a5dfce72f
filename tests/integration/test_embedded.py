"""Real brokers: come up, are broken on purpose, come back, and leave nothing behind."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from kafka import KafkaConsumer, KafkaProducer
from kafka.admin import NewTopic

from connect.core.errors import ConfigError, PermanentError
from connect.embedded import brokers, cluster_config
from connect.embedded.brokers import QUICK_JVM, PortInUse
from tests.kit.brokers import KafkaCluster
from tests.kit.clients import stock_admin
from tests.kit.processes import Member, Role, gone, wait_until

pytestmark = pytest.mark.integration

_DEADLINE_S = 180.0


@pytest.fixture(scope="module")
def own() -> Iterator[KafkaCluster]:
    with KafkaCluster.start("own", advertised=lambda node, port: ("localhost", port)) as cluster:
        yield cluster


def make_topic(cluster: KafkaCluster, **configs: str) -> str:
    topic = f"embedded-{uuid.uuid4().hex}"
    with stock_admin(cluster.bootstrap) as admin:
        admin.create_topics([NewTopic(topic, 1, 1, topic_configs=configs)])
    return topic


def produce(cluster: KafkaCluster, topic: str, value: bytes) -> None:
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap, acks="all")
    try:
        producer.send(topic, value).get(_DEADLINE_S)
    finally:
        producer.close()


def consume(cluster: KafkaCluster, topic: str, count: int) -> list[bytes]:
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=cluster.bootstrap,
        auto_offset_reset="earliest",
        consumer_timeout_ms=int(_DEADLINE_S * 1000),
    )
    try:
        return [record.value for record in itertools.islice(consumer, count)]
    finally:
        consumer.close()


def test_records_survive_a_kill_and_a_clean_stop(own: KafkaCluster) -> None:
    topic = make_topic(own)
    produce(own, topic, b"before")
    for down in (own.kill, own.stop_node):
        pid = own.nodes[0].pid
        down(0)
        assert not own.alive(0)
        own.start_node(0)
        assert own.alive(0)
        assert own.nodes[0].pid != pid
    produce(own, topic, b"after")
    assert consume(own, topic, 2) == [b"before", b"after"]


def test_libraries_that_a_broker_unpacks_go_with_its_files(own: KafkaCluster) -> None:
    produce(own, make_topic(own, **{"compression.type": "lz4"}), b"compressed by native code")
    assert [file.name.partition("-")[0] for file in own.folder.glob("*.so")] == ["liblz4"]


def test_a_frozen_broker_accepts_connections_and_answers_nothing(own: KafkaCluster) -> None:
    # ApiVersions, version 0, correlation 7, no client id.
    request = bytes.fromhex("0000000a 0012 0000 00000007 ffff")
    own.freeze(0)
    try:
        with socket.create_connection((cluster_config.HOST, own.nodes[0].port), timeout=0.5) as connection:
            connection.sendall(request)
            with pytest.raises(TimeoutError):
                connection.recv(1)
            own.thaw(0)
            connection.settimeout(_DEADLINE_S)
            assert connection.recv(8)[4:] == bytes.fromhex("00000007")
    finally:
        own.thaw(0)


def test_clients_of_the_proxied_listener_are_told_the_proxys_address(own: KafkaCluster) -> None:
    host, port = own.proxied_bootstrap.split(":")
    assert host == "localhost"
    assert int(port) != own.nodes[0].port
    with stock_admin(own.proxied_bootstrap) as admin:
        assert [(broker["host"], broker["port"]) for broker in admin.describe_cluster()["brokers"]] == [
            (host, int(port))
        ]


def test_a_node_that_runs_is_not_started_twice(own: KafkaCluster) -> None:
    with pytest.raises(PermanentError, match="node 1 is already running"):
        own.start_node(0)


def test_a_port_in_use_is_one_clear_line() -> None:
    with socket.create_server((cluster_config.HOST, 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortInUse) as raised:
            brokers.KafkaCluster.start("us", client_ports=[port])
    assert str(raised.value).startswith(f"cluster us: port {port} is in use")
    assert "\n" not in str(raised.value)


def test_ports_taken_between_choice_and_start_are_chosen_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server((cluster_config.HOST, 0)) as taken:
        first = [taken.getsockname()[1], *cluster_config.choose(1)]
        answers = [first]
        chosen = cluster_config.choose
        monkeypatch.setattr(cluster_config, "choose", lambda *asked: answers.pop() if answers else chosen(*asked))
        with KafkaCluster.start("again") as cluster:
            assert cluster.nodes[0].port != first[0]
            assert not answers


def test_a_setting_that_kafka_refuses_is_shown() -> None:
    with pytest.raises(PermanentError, match=r"bad: node 1 ended while starting\. The end of its log:") as raised:
        KafkaCluster.start("bad", config={"authorizer.class.name": "org.example.NoSuchAuthorizer"})
    assert "org.example.NoSuchAuthorizer" in str(raised.value)


def test_a_wrong_kafka_home_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KAFKA_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match=f"KAFKA_HOME={tmp_path} has no Apache Kafka"):
        KafkaCluster.start("us")


def the_broker(pid: int) -> Member:
    return Member(Role.OTHER, psutil.Process(pid))


def test_kafka_home_is_used_and_stopping_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    libraries, data = tmp_path / "kafka" / "libs", tmp_path / "data"
    libraries.mkdir(parents=True)
    data.mkdir()
    for jar in brokers.classpath(brokers.JARS):
        (libraries / jar.name).symlink_to(jar)
    monkeypatch.setenv("KAFKA_HOME", str(libraries.parent))
    with KafkaCluster.start("home", base_dir=data) as cluster:
        broker = the_broker(cluster.nodes[0].pid)
        assert str(libraries / "*") in broker.process.cmdline()
        cluster.freeze(0)
    wait_until(lambda: gone([broker]), _DEADLINE_S, "the broker has gone")
    assert list(data.iterdir()) == []
    cluster.stop()


_OWNER = """
import os, sys, threading
from pathlib import Path
from tests.kit.brokers import KafkaCluster
started = []
# From a thread that ends: what outlives it belongs to the process all the same.
thread = threading.Thread(target=lambda: started.append(KafkaCluster.start("owned", base_dir=Path(sys.argv[1]))))
thread.start()
thread.join()
print(started[0].nodes[0].pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.kill
def test_nothing_outlives_a_killed_program(tmp_path: Path) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", _OWNER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with owner:
        assert owner.stdin is not None
        assert owner.stdout is not None
        broker = the_broker(int(owner.stdout.readline()))
        assert not gone([broker])
        owner.kill()
        wait_until(lambda: gone([broker]) and not list(tmp_path.iterdir()), _DEADLINE_S, "nothing is left")


@pytest.mark.kill
def test_brokers_die_with_their_keeper(tmp_path: Path) -> None:
    if sys.platform != "linux":
        pytest.skip("only Linux tells a process that its parent has died")
    cluster = KafkaCluster.start("kept", base_dir=tmp_path)
    try:
        broker = the_broker(cluster.nodes[0].pid)
        os.kill(broker.process.ppid(), signal.SIGKILL)
        wait_until(lambda: gone([broker]), _DEADLINE_S, "the broker has gone")
        with pytest.raises(PermanentError, match=r"has ended\. Start the cluster again"):
            cluster.alive(0)
    finally:
        cluster.stop()
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_archive_of_classes_does_not_break_a_start(tmp_path: Path) -> None:
    option, *others = brokers._class_archive()
    whole, damaged = Path(option.partition("=")[2]), tmp_path / "damaged.jsa"
    content = bytearray(whole.read_bytes())
    for position in range(len(content) // 10, len(content), 1_000_000):
        content[position : position + 64] = bytes(64)
    damaged.write_bytes(content)
    # The second naming of the file wins.
    with KafkaCluster.start("damaged", jvm_options=(*QUICK_JVM, *others, f"-XX:SharedArchiveFile={damaged}")) as own:
        make_topic(own)
