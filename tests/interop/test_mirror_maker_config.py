"""What Java's ``MirrorMakerConfig`` makes of random files, ours makes of them, key by key."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from connect.core.config.client_settings import ADMIN, CONSUMER, PRODUCER
from connect.core.config.rest_settings import REST_INTERNAL
from connect.core.config.security_settings import SECURITY
from connect.core.config.worker_settings import WORKER
from connect.core.errors import ConfigError
from connect.core.model import CLEANED_SOON
from connectors.config.definitions import CHECKPOINT, HEARTBEAT, OWN, SOURCE
from connectors.config.mm2_properties import Connector, load
from tests.kit.java_files import SAMPLE_MIRROR
from tests.kit.java_program import format_properties, judged

pytestmark = pytest.mark.integration

_JUDGE: Final = Path(__file__).with_name("MirrorMakerConfigJudge.java")
#: Java looks for plugins in each file's class path; by service loaders that takes no time.
_QUICK: Final = {"plugin.discovery": "service_load"}
#: Aliases with dots, one that another begins with, and some that look like a prefix of a key.
_ALIASES: Final = ("us", "us.west", "eu", "ap-1", "worker", "task", "source", "consumer", "A", "a b")
_CONNECTOR_KEYS: Final = tuple(
    sorted(
        {*SOURCE.settings, *CHECKPOINT.settings, *HEARTBEAT.settings}
        - {*OWN.settings, *SECURITY.settings, "config.providers"}
    )
)
_SECURITY_KEYS: Final = tuple(sorted(SECURITY.settings.keys() - {"security.protocol"}))
_WORKER_KEYS: Final = tuple(sorted(WORKER.settings.keys() - {"config.providers"}))
_CLIENT_KEYS: Final = tuple(
    f"{kind}.{key}"
    for kind, known in (("producer", PRODUCER), ("consumer", CONSUMER), ("admin", ADMIN))
    for key in sorted(known.settings)
)
_REST_KEYS: Final = tuple(sorted(key for key in REST_INTERNAL.settings if not key.startswith("listeners")))
_ODD_KEYS: Final = (
    "offset.storage.topic", "offset.storage.max.message.bytes", "offset.storage", "config.storage.replication.factor",
    "status.storage.partitions", "key.converter.schemas.enable", "value.converterx", "header.converter", "tasks.max",
    "task.shutdown.graceful.timeout.ms", "workers", "worker.id", "replication.policy.separator", "replication.policyx",
    "replication.policy.own.thing", "use.defaults.from", "exactly.once.support", "transaction.boundary.interval.ms",
    "offsets.storage.topic", "topic.creation.default.partitions", "producer.override.linger.ms",
    "consumer.override.fetch.max.bytes", "admin.override.retries", "consumers", "producerx.y", "administrator",
    "source.consumer.isolation.level", "target.admin.retries", "source.cluster.alias", "target.cluster.alias",
    "source.cluster.security.protocol", "target.cluster.bootstrap.servers", "transforms", "transforms.a.type", "name",
    "predicates.p.type", "connector.class", "enabled", "my.own.filter.setting", "bootstrap.servers", "group.id",
    "client.id", "sasl.mechanism", "sasl.jaas.config", "security.protocol", "config.action.reload", "topics", "groups",
    "emit.heartbeats.enabled", "metrics.context.connect.kafka.cluster.id", "offset-syncs.topic.location",
    "forwarding.admin.class", "metric.reporters", "clusters", "listeners", "",
)  # fmt: skip
#: What ours adds, unless the file sets it: docs/differences.md.
_OWN_DEFAULTS: Final = {"auto.restart.enabled": "true"} | {
    f"offset.storage.{key}": value for key, value in CLEANED_SOON.items()
}
_VALUES: Final = (
    "1",
    "true",
    "False",
    " padded ",
    "a, b",
    "",
    "x=y",
    "${file:@:topics}",
    "${env:NO:SUCH}",
    "${file:a}",
)


def _of_java(files: Sequence[Path]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in judged(_JUDGE, map(str, files)) if line.startswith("{")]


def _of_ours(file: Path) -> dict[str, Any]:
    try:
        config = load(file)
        found: dict[str, Any] = {alias: config.client_properties(alias) for alias in config.clusters}
        for flow in config.flows():
            found[str(flow)] = {
                "worker": flow.worker_config(),
                **{connector.value: flow.connector_config(connector) for connector in Connector},
            }
    except ConfigError as error:
        return {"error": str(error)}
    return found


def _unlike(ours: Mapping[str, Any], java: Mapping[str, Any], where: str = "") -> Iterator[str]:
    for key in sorted(ours.keys() | java.keys()):
        one, other = ours.get(key), java.get(key)
        if key in java and other is None:
            continue  # Java's client refuses a value
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            yield from _unlike(one, other, f"{where}{key} | ")
        elif one != other and (key in java or _OWN_DEFAULTS.get(key) != one):
            yield f"{where}{key}: ours {one!r}, Java's {other!r}"


def _random_file(seeded: random.Random, secrets: Path) -> dict[str, str]:
    aliases = seeded.sample(_ALIASES, seeded.randint(2, 4))
    flows = [f"{source}->{target}" for source in aliases for target in aliases if source != target]
    keys = (_CONNECTOR_KEYS, _SECURITY_KEYS, _WORKER_KEYS, _CLIENT_KEYS, _REST_KEYS, _ODD_KEYS, _ODD_KEYS)
    props = {}
    for _ in range(seeded.randint(5, 60)):
        prefix = seeded.choice(("", "", *(f"{one}." for one in (*aliases, *flows))))
        key = prefix + seeded.choice(seeded.choice(keys))
        props[key] = seeded.choice(_VALUES).replace("@", str(secrets))
    for flow in flows:
        for key in ("enabled", "emit.heartbeats.enabled"):
            if seeded.random() < 0.3:
                props[f"{flow}.{key}"] = seeded.choice(("true", "TRUE", "false", "yes", ""))
    if seeded.random() < 0.3:
        props["emit.heartbeats.enabled"] = seeded.choice(("true", "false", "no"))
    if seeded.random() < 0.6:
        props |= {
            "config.providers": "file",
            "config.providers.file.class": "org.apache.kafka.common.config.provider.FileConfigProvider",
        }
    # What is looked at while the file is read has to be right for any of it to be compared.
    usable = {key: value for key, value in props.items() if key not in {*SECURITY.settings, *REST_INTERNAL.settings}}
    for key in ("sasl.jaas.config", "ssl.truststore.location", "sasl.mechanism", "ssl.keystore.password"):
        if seeded.random() < 0.3:
            usable[key] = seeded.choice(_VALUES).replace("@", str(secrets)) or "x"
    if seeded.random() < 0.5:
        usable["security.protocol"] = seeded.choice(("SSL", "SASL_SSL", "plaintext"))
    for alias in aliases:
        usable[f"{alias}.bootstrap.servers"] = f"{alias.strip()}:9092"
        if f"{alias}.security.protocol" in usable:
            usable[f"{alias}.security.protocol"] = "SSL"
    return {**usable, "clusters": ", ".join(aliases)}


#: Files that are mistaken in one place.
_MISTAKES: Final[Sequence[Mapping[str, str]]] = (
    {"clusters": "A,,B"},
    {"clusters": ""},
    {"security.protocol": "TLS"},
    {"config.providers": "file,,env"},
)


def _files(folder: Path, contents: Sequence[Mapping[str, str]]) -> list[Path]:
    files = [folder / f"{number}.properties" for number in range(len(contents))]
    for file, props in zip(files, contents, strict=True):
        file.write_text(format_properties({**props, **_QUICK}), "latin-1")
    return files


def test_the_sample_file_means_the_same_and_mistakes_are_mistakes_of_both(tmp_path: Path) -> None:
    sample, *mistaken = _files(tmp_path, [SAMPLE_MIRROR, *({**SAMPLE_MIRROR, **mistake} for mistake in _MISTAKES)])
    java, *refused = _of_java([sample, *mistaken])
    assert list(_unlike(_of_ours(sample), java)) == []
    assert {"A->B", "B->A"} < java.keys()
    # Java starts nothing without clusters; it says so when it has read the file.
    assert ["error" in one or not one for one in refused] == [True] * len(_MISTAKES), refused
    assert ["error" in _of_ours(file) for file in mistaken] == [True] * len(_MISTAKES)


@pytest.mark.long
@pytest.mark.parametrize("seed", [41])
def test_random_files_mean_what_they_mean_to_java(tmp_path: Path, seed: int) -> None:
    seeded = random.Random(seed)
    secrets = tmp_path / "secrets.properties"
    secrets.write_text("topics=from.a.file\n")
    files = _files(tmp_path, [_random_file(seeded, secrets) for _ in range(300)])
    javas = _of_java(files)
    assert len(javas) == len(files)
    assert sum("error" not in one for one in javas) > len(files) // 2, [one.get("error") for one in javas]
    for file, java in zip(files, javas, strict=True):
        unlike = list(_unlike(_of_ours(file), java))
        assert not unlike, f"seed {seed}, {file}:\n" + "\n".join(unlike[:20])
