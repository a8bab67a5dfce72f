"""The JSON form of a report, its SHA-256, and the check of a report that was written before.

The SHA-256 is that of the result as JSON with sorted keys, without spaces and in ASCII. It is not a signature: anyone
who can change a report can change its sum too, so compare it with the one that the run printed or logged.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

from connect.core.errors import PermanentError
from connectors.verification.report import VerificationResult
from connectors.verification.reports.html import data_of_page, to_html

SUM: Final = "sha256"


def digest(result: VerificationResult) -> str:
    """Return the SHA-256 of a result, in hexadecimal."""
    return _digest(result.to_json())


def to_document(result: VerificationResult) -> dict[str, Any]:
    """Return the JSON form: the fields of the result, and its sum under ``sha256``."""
    return {**result.to_json(), SUM: digest(result)}


def page(result: VerificationResult) -> str:
    """Return the HTML form, which holds the JSON form too."""
    return to_html(result, json.dumps(to_document(result)), digest(result))


def read_report(text: str) -> VerificationResult:
    """Return the result in a report in JSON or HTML, once its sum is checked; of a page, what it shows is too.

    Raises:
        PermanentError: It is not a report, its contents do not have the sum it states, or the page shows other data.
    """
    data = data_of_page(text)
    try:
        document = json.loads(text if data is None else data)
        stated = document.pop(SUM)
        result = VerificationResult.from_json(document)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise PermanentError(
            f"it is not a report of a verification in JSON or HTML, which alone can be checked ({error}); write one "
            "with heliograph verify --report verified.json"
        ) from error
    if stated != _digest(document):
        raise PermanentError(f"the report was changed: its contents have the SHA-256 {_digest(document)}, not {stated}")
    if data is not None and text != page(result):
        raise PermanentError(
            "the data of the page are unchanged, but the page is not what this version makes of them: it was "
            "changed, or written by another version"
        )
    return result


def _digest(document: Mapping[str, Any]) -> str:
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()
