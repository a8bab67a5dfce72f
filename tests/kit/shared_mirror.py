"""One mirror with a flow for each of several test files: a mirror's start costs ten seconds of CPU."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from connect.embedded import cluster_config
from connect.embedded.cluster_config import HOST
from tests.kit.brokers import KafkaCluster
from tests.kit.direct import Broker
from tests.kit.masking import masking
from tests.kit.mirror import CALM, FOLLOWED_GROUPS, SMALL, Mirror
from tests.kit.moving import flows_of
from tests.kit.proxy import FaultProxy, put_before

#: The target's name in flows from the source under these names.
TARGET: Final = "eu"
SHAPES, LIVE, REST, CHANGES, RACKS = "shop", "live", "seen", "changes", "racks"
#: In the names of the two flows of groups, and of their topics and groups.
GROUPS: Final = "groups"
#: The flow under exactly-once, and its name for the target.
ONCE, ONCE_TARGET = "vault", "once"
#: The flow with a query, the second name of its source, and its name for the target.
MASKED, MASKED_OTHER, MASKED_TARGET = "cards", "cards-other", "masked"
#: Behind the names of clusters, topic and groups in the runbooks, which have a flow each way.
OF_PAGES: Final = "xpages"
#: Listeners of the target that only the flows to the target's other names use, by which tests find their slices.
ONCE_LISTENER, MASKED_LISTENER = "ONCE", "MASKED"
LISTENERS: Final = {ONCE_LISTENER: "PLAINTEXT", MASKED_LISTENER: "PLAINTEXT"}

#: A line of the file that nothing reads.
NO_SUCH_KEY: Final = "no.such.key"

SHAPES_EPOCH_MS: Final = 2000
LIVE_TOPIC, LIVE_PARTITIONS = f"{LIVE}-a", 4
REST_TOPIC: Final = f"{REST}-topic"
RACKS_TOPIC: Final = "far"


@dataclass(frozen=True)
class Racks:
    """A source of two brokers in racks of their own, the second in the mirror's, each behind a proxy."""

    cluster: KafkaCluster
    far: FaultProxy
    near: FaultProxy


@dataclass(frozen=True)
class SharedMirror:
    """The running mirror, its clusters, and the address of its REST API."""

    us: KafkaCluster
    eu: KafkaCluster
    racks: Racks
    mirror: Mirror
    url: str


@contextlib.contextmanager
def start_shared(us: KafkaCluster, eu: KafkaCluster, directory: Path) -> Iterator[SharedMirror]:
    """Start the mirror of all flows; at the end it stops and leaves no process behind."""
    with contextlib.ExitStack() as exits:
        racks = _start_racks(exits)
        (port,) = cluster_config.choose(1)
        properties = _properties(us, eu, racks, port)
        mirror = exits.enter_context(Mirror(properties, directory))
        mirror.start()
        yield SharedMirror(us, eu, racks, mirror, f"http://{HOST}:{port}")
        assert mirror.stop() == 0
        mirror.assert_gone()
        assert not [line for line in mirror.log_lines() if "Traceback" in line]


def pages_flows(bootstrap: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of the flows between two clusters, both ways, by their aliases and brokers."""
    of_each = {
        "enabled": "true",
        "topics": f"orders{OF_PAGES}",
        "groups": f"orders-.*{OF_PAGES}",
        "emit.checkpoints.enabled": "true",
        "emit.checkpoints.interval.seconds": "1",
        "refresh.groups.interval.seconds": "1",
    }
    properties = {f"{alias}.bootstrap.servers": address for alias, address in bootstrap.items()}
    for source, target in itertools.permutations(bootstrap):
        properties |= _calm(target) | {f"{source}->{target}.{key}": value for key, value in of_each.items()}
    return properties


def _calm(target: str) -> dict[str, str]:
    return {key.replace("eu.", f"{target}.", 1): value for key, value in CALM.items() if key.startswith("eu.")}


def _start_racks(exits: contextlib.ExitStack) -> Racks:
    proxies: list[FaultProxy] = []
    advertised = put_before(exits, proxies)
    cluster = exits.enter_context(KafkaCluster.start("racks", nodes=2, racks=("a", "b"), advertised=advertised))
    Broker(cluster, 0).make_topic(RACKS_TOPIC, [[1, 2]])
    return Racks(cluster, *proxies)


def _properties(us: KafkaCluster, eu: KafkaCluster, racks: Racks, port: int) -> dict[str, str]:
    groups = flows_of(GROUPS)
    plain = [SHAPES, LIVE, REST, CHANGES, *(flow.alias for flow in groups)]
    aliases = [*plain, ONCE, MASKED, MASKED_OTHER]
    flows = [f"{alias}->{TARGET}" for alias in (*plain, RACKS)]
    properties = {
        "clusters": ", ".join([*aliases, RACKS, f"us{OF_PAGES}", f"eu{OF_PAGES}", TARGET, ONCE_TARGET, MASKED_TARGET]),
        **{f"{alias}.bootstrap.servers": us.bootstrap for alias in aliases},
        f"{RACKS}.bootstrap.servers": racks.cluster.proxied_bootstrap,
        f"{TARGET}.bootstrap.servers": eu.bootstrap,
        f"{ONCE_TARGET}.bootstrap.servers": eu.bootstrap_of(ONCE_LISTENER),
        f"{MASKED_TARGET}.bootstrap.servers": eu.bootstrap_of(MASKED_LISTENER),
        **{f"{flow}.enabled": "true" for flow in (*flows, f"{ONCE}->{ONCE_TARGET}")},
        **SMALL,
        **CALM,
        "eu.offset.flush.interval.ms": "200",
        "eu.audit.enable": "true",
        "dedicated.mode.enable.public.rest": "true",
        "listeners": f"http://{HOST}:{port}",
        "refresh.topics.interval.seconds": "1",
        NO_SUCH_KEY: "1",
    }
    for name in (ONCE_TARGET, MASKED_TARGET):
        properties |= _calm(name)
    properties |= masking(MASKED, MASKED_OTHER, MASKED_TARGET)
    properties |= pages_flows({f"us{OF_PAGES}": us.bootstrap, f"eu{OF_PAGES}": eu.bootstrap})
    properties |= {
        f"{SHAPES}->eu.topics": r"shape-.*, mm2-x.*, mm2-offsets.*",
        f"{SHAPES}->eu.consumer.isolation.level": "read_committed",
        f"{SHAPES}->eu.tasks.max": "2",
        f"{SHAPES}->eu.copy.epoch.ms": str(SHAPES_EPOCH_MS),
        f"{LIVE}->eu.topics": f"{LIVE}-.*",
        f"{LIVE}->eu.tasks.max": "2",
        f"{REST}->eu.topics": REST_TOPIC,
        f"{REST}->eu.emit.heartbeats.enabled": "true",
        f"{REST}->eu.emit.checkpoints.enabled": "true",
        f"{REST}->eu.lag.interval.ms": "300",
        f"{CHANGES}->eu.topics": f"{CHANGES}-.*",
        f"{RACKS}->eu.topics": RACKS_TOPIC,
        f"{RACKS}.consumer.client.rack": "b",
        f"{ONCE_TARGET}.exactly.once.source.support": "enabled",
        f"{ONCE}->{ONCE_TARGET}.topics": "once-.*",
        f"{ONCE}->{ONCE_TARGET}.consumer.isolation.level": "read_committed",
        # The slice that is killed does not end by itself first.
        f"{ONCE}->{ONCE_TARGET}.copy.epoch.ms": "3600000",
    }
    of_groups = {
        "topics": f".*-{GROUPS}",
        "groups": f"{GROUPS}-.*",
        "consumer.isolation.level": "read_committed",
        "emit.heartbeats.enabled": "true",
        **FOLLOWED_GROUPS,
    }
    for flow in groups:
        properties |= {f"{flow.alias}->eu.{key}": value for key, value in of_groups.items()}
        properties[f"{flow.alias}->eu.replication.policy.class"] = flow.policy_class
    return properties
