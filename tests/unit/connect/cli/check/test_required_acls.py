"""Rights a flow needs, against what a cluster says it allows."""

from __future__ import annotations

from collections.abc import Mapping

from connect.cli.check.clusters import Need, lacks, of_internal
from connect.kafka.authorization import NO_RIGHT, Allowed, Operation, Operations, release_of

READ, WRITE, DESCRIBE, CREATE = Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.CREATE


def of(topics: Mapping[str, Operations | None], *cluster: Operation) -> Allowed:
    return Allowed("id", 1, "4.3", frozenset(cluster), topics)


def reported(needs: list[Need], found: Allowed) -> list[str]:
    return [str(lack) for lack in lacks(needs, found)]


def test_topics_that_lack_the_same_are_told_together() -> None:
    needs = [Need(f"t{number}", frozenset({READ, DESCRIBE})) for number in range(5)]
    found = of({f"t{number}": frozenset({DESCRIBE}) for number in range(4)} | {"t4": frozenset({READ, DESCRIBE})})
    assert reported(needs, found) == ["READ on topics t0, t1, t2 and 1 more is missing"]


def test_what_is_made_by_us_may_be_allowed_by_rules_that_nobody_shows() -> None:
    (need,) = of_internal(["x"])
    assert lacks([need], of({"x": None}, CREATE)) == []
    for shown in (None, NO_RIGHT):
        (lack,) = lacks([need], of({"x": shown}))
        assert not lack.is_certain
        assert "topic x cannot be seen" in str(lack)
    (lack,) = lacks([need], of({"x": frozenset({READ, DESCRIBE, Operation.DESCRIBE_CONFIGS})}))
    assert lack.is_certain
    assert str(lack) == "WRITE on topic x is missing"


def test_a_topic_of_the_source_that_is_hidden_lacks_all() -> None:
    assert reported([Need("x", frozenset({READ}))], of({"x": NO_RIGHT})) == ["READ on topic x is missing"]


def test_rights_on_the_cluster() -> None:
    assert reported([Need("", frozenset({DESCRIBE}))], of({})) == ["DESCRIBE on the cluster is missing"]
    assert reported([Need("", frozenset({DESCRIBE}))], of({}, DESCRIBE)) == []


def test_releases_are_told_by_what_brokers_offer() -> None:
    assert release_of({0: (0, 9), 1: (0, 12), 18: (0, 3)}) == "2.8"
