"""Keys that Java's workers heed and nothing here reads: each has a word, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from connect.core.config.security_settings import SECURITY
from connect.core.config.worker_config import WorkerConfig
from connect.core.config.worker_settings import IGNORED, WORKER
from tests.kit.work import WORKER as SMALLEST

ROOT = Path(__file__).parents[5]
#: Where keys are declared, translated from other files, told of, or what a file is known by.
NO_READERS = {
    "connectors/mirror_maker_1/config.py",
    "connectors/config/ignored_keys.py",
    "connectors/config/definitions.py",
    "connect/cli/check/findings.py",
}
#: Read by a beginning and an end that are put together: of the three internal topics, and of converters.
PUT_TOGETHER = ("storage.replication.factor", "converter.plugin.version")
#: Read of a producer or of MirrorMaker 1's consumer, and of no worker.
OF_CLIENTS = {"metadata.max.age.ms"}
#: Read beside its declaration.
OF_ACCESS = {"rest.extension.classes", "rest.insecure"}


def read_keys() -> set[str]:
    """Every quoted text in the code that might be a key."""
    files = [path for part in ("connect", "connectors", "rest") for path in (ROOT / part).rglob("*.py")]
    declared = set((ROOT / "connect" / "core" / "config").glob("*_settings.py"))
    readers = [path for path in files if str(path.relative_to(ROOT)) not in NO_READERS and path not in declared]
    return {text for path in readers for text in re.findall(r'"([\w.]+)"', path.read_text())}


def test_every_key_of_a_worker_is_read_or_told_of() -> None:
    # Which of these are read is for SUPPORTED_SECURITY to say.
    keys = WORKER.settings.keys() - SECURITY.settings.keys()
    read = read_keys() - OF_CLIENTS | OF_ACCESS | {key for key in keys if key.endswith(PUT_TOGETHER)}
    assert keys - read == IGNORED.keys()


@pytest.mark.parametrize("key", sorted(IGNORED))
def test_a_worker_file_that_has_one_is_told(key: str) -> None:
    default = WORKER.settings[key].default
    value = ",".join(default) if isinstance(default, tuple) else str(default)
    assert f"{key} {IGNORED[key]}" in WorkerConfig.parse({**SMALLEST, key: value}).warnings


@pytest.mark.parametrize("key", ["ssl.protocol", "security.providers", "retries", "sasl.login.connect.timeout.ms"])
def test_a_worker_file_with_a_key_that_is_not_supported_is_warned_of(key: str) -> None:
    assert f"{key} is not supported yet and has no effect" in WorkerConfig.parse({**SMALLEST, key: "9"}).warnings
