"""What a running mirror shows its users: REST, ``/metrics`` and ``heliograph lag``."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.error
import urllib.request
from typing import Any, Final

from connectors.flow_verdict import FlowVerdict
from tests.kit.mirror import Mirror
from tests.kit.workers import PROGRAMS

_FLOW_METRIC: Final = "kafka_connect_mirror_MirrorSourceConnector_"
_TIMEOUT_S: Final = 60.0


class Seen:
    """Of the flow from ``source`` to eu, over the mirror's REST listener at ``url``."""

    def __init__(self, mirror: Mirror, url: str, source: str) -> None:
        self.mirror = mirror
        self.url = url
        self.source = source

    def ask(self, path: str, method: str = "GET") -> Any:
        body = _get(self.url + path, method)
        return json.loads(body) if body else None

    def status(self, path: str) -> int:
        try:
            with urllib.request.urlopen(self.url + path, timeout=_TIMEOUT_S) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    def metric(self, name: str) -> float:
        return _value(self.url, rf'{_FLOW_METRIC}{name}{{[^}}]*source="{self.source}"[^}}]*}}')

    def process_metric(self, name: str) -> float:
        """A value of the whole process; NaN if there is none."""
        return process_metric(self.url, name)

    def lag(self, *more: str, flow: str = "") -> tuple[int, str]:
        """Exit code and output of ``heliograph lag``, of the file or of what ``more`` names."""
        file = [] if more else [str(self.mirror.properties_file)]
        return _printed("lag", *file, *more, "--flow", flow or f"{self.source}->eu")

    def status_printed(self) -> tuple[int, str]:
        return _printed("status", str(self.mirror.properties_file))

    def verdict(self) -> FlowVerdict:
        path = f"/{self.source}/eu/connectors/MirrorSourceConnector/verdict"
        return FlowVerdict.from_wire(self.ask(path)["verdict"])


def _printed(*words: str) -> tuple[int, str]:
    command = [str(PROGRAMS / "heliograph"), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout + done.stderr


def process_metric(url: str, name: str) -> float:
    """A value that the process with the REST listener at ``url`` tells of itself; NaN if there is none."""
    return _value(url, name)


def _value(url: str, sample: str) -> float:
    found = re.search(rf"^{sample} (\S+)$", _get(f"{url.rstrip('/')}/metrics", "GET").decode(), re.MULTILINE)
    return float(found[1]) if found else float("nan")


def _get(url: str, method: str) -> bytes:
    request = urllib.request.Request(url, method=method)
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
        body: bytes = answer.read()
    return body
