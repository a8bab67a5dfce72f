"""``heliograph verify``: options that are refused before Spark starts, exit codes, and the end of ``--watch``."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from connect.cli.commands import verify
from connect.cli.commands.verify import VerifyArguments, run_verify
from connect.core.errors import ConfigError, RetriableError
from connectors.verification.report import PartitionResult, VerificationResult
from connectors.verification.report_forms import read_report
from connectors.verification.run import Progress

EQUAL = VerificationResult("us->eu", 0, 0, {}, (PartitionResult("t", 0, "us.t", 0, 9, 9, 9, 0, 9, 9, 1),))
DIFFERS = replace(EQUAL, partitions=(replace(EQUAL.partitions[0], differences_total=1),))


def arguments(folder: Path, **more: Any) -> VerifyArguments:
    file = folder / "mm2.properties"
    file.write_text(
        "clusters = us, eu\nus.bootstrap.servers = a:1\neu.bootstrap.servers = b:1\nus->eu.enabled = true\n"
    )
    plain = VerifyArguments(file, None, (), None, None, False, 0, 64, None, folder / "a.json", False, False)
    return replace(plain, **more)


@pytest.mark.parametrize(
    ("more", "match"),
    [
        ({"topics": ("orders[",)}, r"'orders\[' is not a regular expression"),
        ({"begin": "2026-11-20T11:00Z", "to": "2026-11-20T10:00Z"}, "is not after --from"),
        ({"begin": "yesterday"}, "is not a time such as"),
        ({"report": Path("/none/such/a.html")}, "cannot be written"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_read(tmp_path: Path, more: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        run_verify(arguments(tmp_path, **more))


def test_a_report_that_is_a_folder_is_refused(tmp_path: Path) -> None:
    (folder := tmp_path / "reports.html").mkdir()
    with pytest.raises(ConfigError, match="is a folder: name a file"):
        run_verify(arguments(tmp_path, report=folder))


class Engine:
    def begin(self) -> None: ...

    async def stop(self) -> None: ...


def fake_runs(monkeypatch: pytest.MonkeyPatch, *results: VerificationResult | Exception | None) -> None:
    """Let runs end with ``results``; None is a run that SIGINT interrupts."""

    left = list(results)

    class Runs:
        async def run(self) -> VerificationResult:
            result = left.pop(0)
            if result is None:
                os.kill(os.getpid(), signal.SIGINT)
                await asyncio.Event().wait()
            if isinstance(result, Exception):
                raise result
            assert result is not None
            return result

    @asynccontextmanager
    async def verifying(*_: object) -> AsyncIterator[Runs]:
        yield Runs()

    monkeypatch.setattr(verify, "verifying", verifying)
    monkeypatch.setattr(verify, "spark_for_verification", lambda *_: (1, Engine()))
    monkeypatch.setattr(verify, "_AGAIN_S", 0.01)


def test_the_end_of_a_watch_reports_the_last_whole_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_runs(monkeypatch, EQUAL, DIFFERS, DIFFERS, DIFFERS, None)
    given = arguments(tmp_path, watches=True)
    assert run_verify(given) == 2
    assert given.report is not None
    assert read_report(given.report.read_text()) == DIFFERS
    # Once when it was found, and at the end.
    assert capsys.readouterr().out.count("us->eu: 1 difference") == 2


def test_a_watch_goes_on_after_a_pass_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Not if it is the first: then nothing was compared yet."""
    lost = RetriableError("cluster us: no broker answers")
    fake_runs(monkeypatch, EQUAL, lost, DIFFERS, None)
    assert run_verify(arguments(tmp_path, watches=True)) == 2
    assert "us->eu: a pass has failed: cluster us: no broker answers; trying again" in caplog.text
    fake_runs(monkeypatch, lost)
    with pytest.raises(RetriableError):
        run_verify(arguments(tmp_path, watches=True))


def test_the_start_of_spark_is_shown_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    for is_spark_up in (False, True):
        verify._show_line(Progress("us->eu", 0, 9, 0, 0.0, -1.0, 0, is_spark_up))
    starting, following = capsys.readouterr().err.split(verify._CLEAR)[1:]
    assert (starting, following) == ("us->eu: starting Spark", "us->eu: 0% verified, 0 MiB/s")


def test_a_finished_pass_shows_no_speed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The line stays until the next pass of --watch; "0 MiB/s" would look like one that hangs."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    verify._show_line(Progress("us->eu", 9, 9, 99, 0.1, 0.0, 1, True))
    assert re.search(r"us->eu: verified what was copied by [0-9:]{8} UTC, 1 difference$", capsys.readouterr().err)


def test_an_interrupted_run_reports_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_runs(monkeypatch, None)
    with pytest.raises(KeyboardInterrupt):
        run_verify(arguments(tmp_path))


@pytest.mark.parametrize(("result", "code"), [(EQUAL, 0), (DIFFERS, 2)])
def test_a_difference_counts_more_than_what_could_not_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, result: VerificationResult, code: int
) -> None:
    fake_runs(monkeypatch, result, replace(result, unread=("t-1: no leader",)))
    assert run_verify(arguments(tmp_path)) == code
    fake_runs(monkeypatch, replace(result, unread=("t-1: no leader",)))
    assert run_verify(arguments(tmp_path)) == (code or 1)
