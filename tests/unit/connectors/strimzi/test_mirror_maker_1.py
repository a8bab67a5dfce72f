"""Resources of MirrorMaker 1 are refused with the command that takes their place."""

from __future__ import annotations

import pytest

from connect.core.errors import ConfigError
from tests.unit.connectors.strimzi.resources import NEW, translation

#: Strimzi 0.45's two examples in one, and what else the resource may say.
RESOURCE = """\
apiVersion: kafka.strimzi.io/v1beta2
kind: KafkaMirrorMaker
metadata:
  name: my-mirror-maker
spec:
  version: 3.9.0
  replicas: 1
  consumer:
    bootstrapServers: source:9093
    groupId: my-source-group-id
    tls: {trustedCertificates: [{secretName: source-ca, certificate: ca.crt}]}
  producer:
    bootstrapServers: target:9092
  include: ".*"
"""


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as error:
        translation(text)
    return str(error.value)


def test_the_command_and_the_files_are_named() -> None:
    assert refusal(RESOURCE) == (
        "mirror.yaml:1: KafkaMirrorMaker is MirrorMaker 1. Use the command kafka-mirror-maker "
        "--consumer.config source.properties --producer.config target.properties --include '.*'; "
        "source.properties has bootstrap.servers=source:9093, group.id=my-source-group-id, "
        "the keys of docs/security.md for spec.consumer.tls; target.properties has bootstrap.servers=target:9092; "
        "see docs/mirrormaker-1.md"
    )


def test_other_fields_have_their_options() -> None:
    more = "    numStreams: 2\n    offsetCommitInterval: 500\n    config: {max.poll.records: 10}\n  producer:\n"
    text = RESOURCE.replace("  producer:\n", f"{more}    abortOnSendFailure: false\n").replace("include", "whitelist")
    said = refusal(text)
    assert (
        " --include '.*' --num.streams 2 --offset.commit.interval.ms 500 --abort.on.send.failure false; source" in said
    )
    assert "the keys of spec.consumer.config, the keys of docs/security.md for" in said


def test_one_that_says_nothing_is_told_what_is_needed() -> None:
    said = refusal("kind: KafkaMirrorMaker\n")
    assert "source.properties has bootstrap.servers=..., group.id=...; target.properties has" in said


def test_beside_one_of_mirror_maker_2_it_is_passed_over() -> None:
    assert translation(f"{RESOURCE}---\n{NEW}").name == "us-to-eu"
