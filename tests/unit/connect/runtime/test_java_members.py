"""What a worker says of a class that it does not have, and that a Java leader gave it."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from connect.core.errors import RetriableError
from connect.core.herder.membership import SESSIONED, WorkerMetadata, encode_metadata
from connect.runtime.distributed_worker import JavaMembers

JAVA = ("http://java1/", "http://java2/")
OURS = encode_metadata(SESSIONED, WorkerMetadata("http://ours/", 7, lease_ms=5000))


class Others:
    """Java's two workers and one of ours; an exception in ``answers`` is raised."""

    def __init__(self, *answers: bool | Exception) -> None:
        self.answers = dict(zip(JAVA, answers, strict=True))
        self.asked = 0

    async def members(self) -> list[bytes]:
        return [*(encode_metadata(SESSIONED, WorkerMetadata(url, 7)) for url in JAVA), OURS, b""]

    async def has_class(self, url: str, connector_class: str) -> bool:
        assert connector_class == "a.Sink"
        self.asked += 1
        if isinstance(answer := self.answers[url], Exception):
            raise answer
        return answer


def made(others: Others, leader: str = JAVA[0], *, is_leader: bool = False) -> JavaMembers:
    core: Any = SimpleNamespace(leader_url=leader, is_leader=is_leader, generation=3)
    internal: Any = others
    return JavaMembers(core, others.members, internal)


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ((False, True), "Workers that have the class: http://java2/. A restart .* Restart the worker that leads"),
        ((RetriableError("no answer"), True), "Workers that have the class: http://java2/. A restart"),
        ((False, False), "install its plugin on http://java1/, http://java2/, or delete the connector"),
        ((False, RetriableError("no answer")), "is not known, because they did not answer. A restart"),
    ],
)
async def test_which_workers_have_the_class_and_what_to_do(answers: tuple[bool | Exception, ...], said: str) -> None:
    explained = await made(Others(*answers)).explain("a.Sink")
    assert explained is not None
    assert re.search(
        f"does not run the class a.Sink. .* leads the group, http://java1/, is one of Java's.*{said}", explained
    )


async def test_a_class_is_asked_for_once_in_a_generation() -> None:
    others = Others(True, False)
    members = made(others)
    assert await members.explain("a.Sink") == await members.explain("a.Sink")
    assert others.asked == 2
    members.core.generation = 4
    await members.explain("a.Sink")
    assert others.asked == 4


async def test_nothing_is_said_where_ours_leads() -> None:
    assert await made(Others(True, True), "http://ours/").explain("a.Sink") is None
    assert await made(Others(True, True), is_leader=True).explain("a.Sink") is None
