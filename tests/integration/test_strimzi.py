"""A Strimzi resource run as users run it: a mirror that runs copies its records, one that is stopped does not."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from connect.embedded import cluster_config
from tests.kit.brokers import KafkaCluster
from tests.kit.direct import Broker, value_numbers
from tests.kit.mirror import Mirror
from tests.kit.processes import wait_until
from tests.kit.secured import Secured, set_password, start_secured
from tests.kit.workers import PROGRAMS

pytestmark = [pytest.mark.integration, pytest.mark.slow]

DEADLINE_S = 400.0
RECORDS = 10
RESOURCE = """\
apiVersion: kafka.strimzi.io/v1
kind: KafkaMirrorMaker2
metadata: {{name: as-resource}}
spec:
  replicas: 1
  target:
    alias: eu
    bootstrapServers: {eu}
    groupId: as-resource
    configStorageTopic: as-resource-config
    offsetStorageTopic: as-resource-offset
    statusStorageTopic: as-resource-status
    config:
      config.storage.replication.factor: -1
      offset.storage.replication.factor: -1
      status.storage.replication.factor: -1
  mirrors:
    - source: {{alias: res, bootstrapServers: '{us}'}}
      sourceConnector:
        tasksMax: 1
        state: {state}
        config:
          replication.factor: -1
          offset-syncs.topic.replication.factor: -1
          sync.topic.acls.enabled: "false"
      topicsPattern: {topic}
"""

#: Another mirror of the resource, which is not to run.
STOPPED = """\
    - source: {{alias: held, bootstrapServers: '{us}'}}
      sourceConnector:
        tasksMax: 1
        state: stopped
        config:
          replication.factor: -1
          offset-syncs.topic.replication.factor: -1
          sync.topic.acls.enabled: "false"
      topicsPattern: {topic}
"""
AUTO_RESTART = "autoRestart: {enabled: true, maxRestarts: 1}"
PASSWORD = "of-carol-alone"
#: SCRAM over TLS at the source, mutual TLS at the target.
SECURED = """\
apiVersion: kafka.strimzi.io/v1beta2
kind: KafkaMirrorMaker2
metadata: {{name: guarded}}
spec:
  replicas: 1
  connectCluster: eu
  clusters:
    - alias: us
      bootstrapServers: {us}
      tls: {{trustedCertificates: [{{secretName: us-ca, certificate: ca.crt}}]}}
      authentication:
        type: scram-sha-512
        username: carol
        passwordSecret: {{secretName: us-carol, password: password}}
    - alias: eu
      bootstrapServers: {eu}
      tls: {{trustedCertificates: [{{secretName: eu-ca, certificate: ca.crt}}]}}
      authentication:
        type: tls
        certificateAndKey: {{secretName: eu-user, certificate: user.crt, key: user.key}}
      config:
        config.storage.replication.factor: -1
        offset.storage.replication.factor: -1
        status.storage.replication.factor: -1
  mirrors:
    - sourceCluster: us
      targetCluster: eu
      sourceConnector:
        tasksMax: 1
        config:
          replication.factor: -1
          offset-syncs.topic.replication.factor: -1
          sync.topic.acls.enabled: "false"
      topicsPattern: {topic}
"""


def command(*more: str) -> list[str]:
    rest = f"listeners=http://{cluster_config.HOST}:{cluster_config.choose(1)[0]}"
    return [str(PROGRAMS / "heliograph"), "mirror", "--set", rest, *more, "-f"]


def test_a_resource_is_run_and_each_mirror_has_its_state(us: KafkaCluster, eu: KafkaCluster, tmp_path: Path) -> None:
    topic, remote, held = "seen-as-resource", "res.seen-as-resource", "held.seen-as-resource"
    ours, theirs = Broker(us, 0), Broker(eu, 0)
    ours.make(topic)
    theirs.make(held)
    ours.produce(topic, 0, RECORDS)
    with Mirror({}, tmp_path, command()) as mirror:
        addresses = {"us": us.bootstrap, "eu": eu.bootstrap, "topic": topic}
        mirror.properties_file.write_text(RESOURCE.format(**addresses, state="running") + STOPPED.format(**addresses))
        mirror.start()
        mirror.await_line(0, ["spec.replicas: has no effect: one process is one worker"], DEADLINE_S)
        mirror.await_line(0, ["res->eu.MirrorSourceConnector: created"], DEADLINE_S)
        wait_until(lambda: theirs.end(remote) >= RECORDS, DEADLINE_S, "all is copied")
        mirror.await_line(0, ["held->eu.MirrorSourceConnector: created"], DEADLINE_S)
        ours.produce(topic, RECORDS, RECORDS)
        wait_until(lambda: theirs.end(remote) >= 2 * RECORDS, DEADLINE_S, "the rest is copied")
        assert mirror.stop() == 0
        mirror.assert_gone()
    assert asyncio.run(value_numbers(eu.bootstrap, remote)) == [*range(2 * RECORDS)], "each once"
    assert theirs.end(held) == 0, "nothing of a mirror that is stopped"


@pytest.mark.long
def test_what_a_restart_cannot_fix_is_not_restarted(us: KafkaCluster, eu: KafkaCluster, tmp_path: Path) -> None:
    topic, remote = "seen-to-fail", "res.seen-to-fail"
    ours, theirs = Broker(us, 0), Broker(eu, 0)
    ours.make(topic)
    ours.produce(topic, 0, RECORDS)
    with Mirror({}, tmp_path, command()) as mirror:
        text = RESOURCE.format(us=us.bootstrap, eu=eu.bootstrap, topic=topic, state="running")
        text = text.replace("as-resource", "to-restart").replace("tasksMax: 1", f"tasksMax: 1\n        {AUTO_RESTART}")
        mirror.properties_file.write_text(text)
        mirror.start()
        wait_until(lambda: theirs.end(remote) >= RECORDS, DEADLINE_S, "all is copied")
        # Its only partition stops, which no restart changes.
        ours.delete_topic(topic)
        ours.make(topic)
        task = "task res->eu.MirrorSourceConnector-0"
        mirror.await_line(0, [f"{task} is not restarted automatically: a restart cannot fix this error"], DEADLINE_S)
        assert mirror.stop() == 0
        mirror.assert_gone()


@pytest.mark.long
def test_a_resource_of_secured_clusters_is_run(tmp_path: Path) -> None:
    topic, remote = "seen-guarded", "us.seen-guarded"
    secrets, log = tmp_path / "secrets", tmp_path / "mirror"
    for folder in (tmp_path / "us", tmp_path / "eu", secrets, log):
        folder.mkdir()
    with start_secured("us", tmp_path / "us") as us, start_secured("eu", tmp_path / "eu") as eu:
        set_password(us.cluster, "carol", PASSWORD)
        mounted = {
            "us-ca": {"ca.crt": us.authority.pem},
            "us-carol": {"password": PASSWORD},
            "eu-ca": {"ca.crt": eu.authority.pem},
            "eu-user": {"user.crt": eu.client.pem, "user.key": eu.client.key_pem()},
        }
        for secret, files in mounted.items():
            (secrets / secret).mkdir()
            for name, text in files.items():
                (secrets / secret / name).write_text(text)
        _run_secured(us, eu, topic, remote, secrets, log)
    shown = (log / "mirror.log").read_text()
    assert PASSWORD not in shown and "PRIVATE KEY" not in shown


def _run_secured(us: Secured, eu: Secured, topic: str, remote: str, secrets: Path, directory: Path) -> None:
    ours, theirs = Broker(us.cluster, 0), Broker(eu.cluster, 0)
    ours.make(topic)
    ours.produce(topic, 0, RECORDS)
    with Mirror({}, directory, command("--secrets", str(secrets))) as mirror:
        ways = {"us": us.cluster.bootstrap_of("SCRAM_TLS"), "eu": eu.cluster.bootstrap_of("MUTUAL")}
        mirror.properties_file.write_text(SECURED.format(topic=topic, **ways))
        mirror.start()
        mirror.await_line(0, ["us->eu.MirrorSourceConnector: created"], DEADLINE_S)
        wait_until(lambda: theirs.end(remote) >= RECORDS, DEADLINE_S, "all is copied")
        assert mirror.stop() == 0, mirror.log_lines()[-20:]
        mirror.assert_gone()
