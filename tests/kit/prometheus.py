"""A Prometheus of the machine that reads one worker and evaluates our rules, with what an alert waits for left out."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import yaml

from connect.embedded import cluster_config
from tests.kit.boards import RULES
from tests.kit.processes import wait_until

PROMETHEUS: Final = shutil.which("prometheus")
PROMTOOL: Final = shutil.which("promtool")
_EVERY: Final = "5s"
_START_S: Final = 60.0


class Prometheus:
    """Asked over HTTP at ``url``."""

    def __init__(self, url: str) -> None:
        self._url = url

    def query(self, expr: str) -> list[dict[str, Any]]:
        """The series of an expression now. An ``AssertionError`` for one that is wrong."""
        answer = httpx.get(f"{self._url}/api/v1/query", params={"query": expr}, trust_env=False, timeout=30.0).json()
        assert answer["status"] == "success", (expr, answer)
        found = answer["data"]["result"]
        if answer["data"]["resultType"] == "scalar":
            return [{"metric": {}, "value": found}]
        series: list[dict[str, Any]] = found
        return series

    def firing(self, name: str = "") -> set[str]:
        """The alerts that fire, as ``name source->target``, or only the name if an alert is of no flow."""
        matcher = f', alertname="{name}"' if name else ""
        found = [one["metric"] for one in self.query(f'ALERTS{{alertstate="firing"{matcher}}}')]
        return {
            f"{one['alertname']} {one['source']}->{one['target']}" if "source" in one else one["alertname"]
            for one in found
        }


@contextlib.contextmanager
def started(target: str, directory: Path) -> Iterator[Prometheus]:
    """Start a Prometheus that reads ``target`` (host and port) every five seconds."""
    assert PROMETHEUS is not None
    rules = yaml.safe_load(RULES.read_text("utf-8"))
    for group in rules["groups"]:
        for rule in group["rules"]:
            rule.pop("for", None)
    (directory / "rules.yml").write_text(yaml.safe_dump(rules))
    scrape = {"job_name": "heliograph", "static_configs": [{"targets": [target]}]}
    config = {
        "global": {"scrape_interval": _EVERY, "scrape_timeout": _EVERY, "evaluation_interval": _EVERY},
        "rule_files": ["rules.yml"],
        "scrape_configs": [scrape],
    }
    file = directory / "prometheus.yml"
    file.write_text(yaml.safe_dump(config))
    (port,) = cluster_config.choose(1)
    address = f"{cluster_config.HOST}:{port}"
    command = [
        PROMETHEUS,
        f"--config.file={file}",
        f"--storage.tsdb.path={directory / 'data'}",
        f"--web.listen-address={address}",
        "--log.level=warn",
    ]
    with (directory / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            wait_until(lambda: _is_ready(address), _START_S, "Prometheus is ready")
            yield Prometheus(f"http://{address}")
        finally:
            process.kill()
            process.wait()


def _is_ready(address: str) -> bool:
    try:
        return httpx.get(f"http://{address}/-/ready", trust_env=False, timeout=5.0).status_code == 200
    except httpx.TransportError:
        return False
