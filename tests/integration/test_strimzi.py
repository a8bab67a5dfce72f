"""A Strimzi resource run as users run it: records copied, a state heeded, a second start with another file."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from connect.embedded import ports
from connect.embedded.brokers import KafkaCluster
from tests.kit.direct import Broker
from tests.kit.mirror import Mirror
from tests.kit.processes import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow]

DEADLINE_S = 180.0
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


def test_a_resource_is_run_and_its_state_heeded(us: KafkaCluster, eu: KafkaCluster, tmp_path: Path) -> None:
    topic, remote = "seen-as-resource", "res.seen-as-resource"
    ours, theirs = Broker(us, 0), Broker(eu, 0)
    ours.make_topic(topic, [[1]])
    wait_until(lambda: ours.end(topic) == 0, DEADLINE_S, "the topic is there", 0.1)
    ours.produce(topic, 0, RECORDS)
    program = str(Path(sys.executable).parent / "heliograph")
    rest = f"listeners=http://{ports.HOST}:{ports.choose(1)[0]}"
    with Mirror({}, tmp_path, [program, "mirror", "--set", rest, "-f"]) as mirror:

        def write(state: str) -> None:
            mirror.properties_file.write_text(
                RESOURCE.format(us=us.bootstrap, eu=eu.bootstrap, topic=topic, state=state)
            )

        write("running")
        mirror.start()
        mirror.await_line(0, ["spec.replicas: one process is one worker"], DEADLINE_S)
        mirror.await_line(0, ["res->eu.MirrorSourceConnector: created"], DEADLINE_S)
        wait_until(lambda: theirs.end(remote) >= RECORDS, DEADLINE_S, "all is copied", 0.1)
        assert mirror.stop() == 0
        mirror.assert_gone()
        end = theirs.end(remote)  # behind markers too, where a slow machine has taken over

        write("stopped")
        begun = mirror.log_end()
        mirror.start()
        mirror.await_line(begun, ["res->eu.MirrorSourceConnector: stopped"], DEADLINE_S)
        assert mirror.stop() == 0
        mirror.assert_gone()
    assert theirs.end(remote) == end
