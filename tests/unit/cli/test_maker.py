"""How all flows are stopped, and that they agree on one listener; with flows and Spark in memory."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from connect.cli import maker
from connect.cli.maker import MirrorMaker, StopFailed
from connect.core.errors import ConfigError, RetriableError
from connectors.flows import MirrorMakerConfig, load


class Mirror:
    """A flow that ends as it is told."""

    def __init__(self, flow: SimpleNamespace) -> None:
        self.flow = flow.name
        self.settings = SimpleNamespace(link_listener=flow.listener, link_advertised_address="")
        self.failure: BaseException | None = flow.failed_before
        self._fails = flow.fails_in_stopping
        self._raises = flow.raises_in_stopping

    async def stop(self) -> None:
        self.failure = self.failure or self._fails
        if self._raises is not None:
            raise self._raises


class Engine:
    code = "heliograph-1"

    def __init__(self) -> None:
        self.is_stopped = False

    async def stop(self) -> None:
        self.is_stopped = True


def a_flow(name: str, **other: Any) -> SimpleNamespace:
    found = (
        {"listener": "127.0.0.1:0"}
        | dict.fromkeys(("failed_before", "fails_in_stopping", "raises_in_stopping"))
        | other
    )
    return SimpleNamespace(name=name, **found)


@pytest.fixture
def config(tmp_path: Path) -> MirrorMakerConfig:
    file = tmp_path / "mm2.properties"
    file.write_text("clusters = us, eu\nlink.listener = 127.0.0.1:0\n")
    return load(file)


def made(
    monkeypatch: pytest.MonkeyPatch, config: MirrorMakerConfig, *flows: SimpleNamespace
) -> tuple[MirrorMaker, Engine]:
    monkeypatch.setattr(maker, "_FlowMirror", Mirror)
    engine = Engine()
    return MirrorMaker(config, cast(Any, flows), cast(Any, engine)), engine


@pytest.mark.parametrize("when", ["fails_in_stopping", "raises_in_stopping"])
async def test_a_flow_that_fails_while_it_is_stopped_is_an_error_and_the_rest_is_stopped(
    monkeypatch: pytest.MonkeyPatch, config: MirrorMakerConfig, when: str
) -> None:
    error = RetriableError("the target does not answer")
    mirrors, engine = made(monkeypatch, config, a_flow("us->eu", **{when: error}), a_flow("eu->us"))
    with pytest.raises(StopFailed, match="us->eu: the target does not answer"):
        await mirrors.stop()
    assert engine.is_stopped


async def test_a_flow_that_had_failed_before_does_not_make_stopping_fail(
    monkeypatch: pytest.MonkeyPatch, config: MirrorMakerConfig
) -> None:
    mirrors, engine = made(monkeypatch, config, a_flow("us->eu", failed_before=KeyError("x")), a_flow("eu->us"))
    await mirrors.stop()
    assert engine.is_stopped


@pytest.mark.parametrize(
    ("listeners", "word"),
    [(("127.0.0.1:1", "127.0.0.1:2"), "differs between flows"), (("nowhere", "nowhere"), "should be host:port")],
)
def test_a_listener_that_cannot_serve_all_flows_is_refused_with_its_line(
    monkeypatch: pytest.MonkeyPatch, config: MirrorMakerConfig, listeners: tuple[str, str], word: str
) -> None:
    with pytest.raises(ConfigError, match=f"mm2.properties:2: link.listener.*{word}"):
        made(monkeypatch, config, *(a_flow(str(index), listener=listener) for index, listener in enumerate(listeners)))
