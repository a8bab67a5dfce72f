"""The proof of a failover: what its flow has copied is verified to the end before groups move, if the operator asks."""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable
from typing import Final

from connect.core.errors import PermanentError
from connect.core.wording import counted, named
from connectors.verification.report import VerificationResult, headline

#: Verifies the flow from where its last verification ended, within a limit in seconds; None: until it is whole.
Verify = Callable[[float | None], Awaitable[VerificationResult]]
_REASONS: Final = 3


class NotProved(PermanentError):
    """The copy differs, or the operator wants it verified whole and it is not. No group was moved."""


def proved(result: VerificationResult, *, is_whole_wanted: bool) -> str:
    """Return what was verified and what was not, in a sentence. Raises NotProved."""
    said, command = headline(result), f"heliograph verify --flow {shlex.quote(result.flow)}"
    if not result.is_equal:
        raise NotProved(
            f"{said}. No group was moved. See which records differ with {command}, repair the target, and run that "
            "with --full"
        )
    if result.is_complete:
        return said
    left = sum(max(one.copied_to - one.verified_to, 0) for one in result.partitions)
    missing = [f"{counted(left, 'record')} not compared in time"] if left else []
    missing += result.unread
    if not missing:
        missing = ["not all was compared in time"]
    said = f"{said}; {named(missing, _REASONS, between='; ')}"
    if is_whole_wanted:
        raise NotProved(
            f"{said}. No group was moved. Run this again, which continues there, or with --verify-within alone, which "
            "moves groups in spite of it"
        )
    return said
