"""The verification that ``heliograph failover --verify`` runs between drain and move, in a Spark of the command."""

from __future__ import annotations

import time
from typing import Final

from connect.cli.daemons.spark import spark_for_verification
from connect.core.wording import age_text
from connect.runtime.plugins.plugin_registry import Plugins
from connectors.config.mm2_properties import Flow
from connectors.failover.drain import Report
from connectors.verification.planning import VerifyOptions
from connectors.verification.report import VerificationResult
from connectors.verification.run import Progress, verifying

#: Between two lines of progress.
_EACH_S: Final = 10.0


class CopyVerifier:
    """Verifies what a flow has copied. :meth:`begin` starts Spark in the background, :meth:`stop` ends it.

    Raises the errors of :func:`connect.cli.daemons.spark.spark_for_verification`.
    """

    def __init__(self, flow: Flow, report: Report) -> None:
        self._flow = flow
        self._report = report
        self._tasks, self._engine = spark_for_verification(flow, None)
        self._shown_s = 0.0

    def begin(self) -> None:
        self._engine.begin()

    async def stop(self) -> None:
        await self._engine.stop()

    async def __call__(self, within_s: float | None) -> VerificationResult:
        """Verify from where the last run ended, for at most ``within_s``. Errors are those of
        :meth:`connectors.verification.run.Verification.run`."""
        options = VerifyOptions(tasks=self._tasks, within_s=within_s)
        self._shown_s = time.monotonic()
        async with verifying(self._flow, self._engine, options, Plugins.discover().find, self._show) as verification:
            return await verification.run()

    def _show(self, progress: Progress) -> None:
        if time.monotonic() - self._shown_s >= _EACH_S and progress.offsets_total:
            self._shown_s = time.monotonic()
            left = "" if progress.left_s < 0 else f", {age_text(round(progress.left_s * 1000))} left"
            self._report(f"{progress.flow}: {progress.offsets / progress.offsets_total:.0%} verified{left}")
