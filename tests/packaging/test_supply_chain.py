"""What is installed is locked by hashes: runtime apart from development, images, jars, and the bill of materials."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from connect.embedded import brokers, maven_download
from tests.packaging.sbom import JARS, LOCKS, ROOT, bill

IMAGES = sorted((ROOT / "deploy" / "images").glob("*.Dockerfile"))


def locked(name: str) -> dict[str, str]:
    return dict(re.findall(r"^([\w.-]+)==([^\s;]+)", (ROOT / name).read_text(), re.MULTILINE))


def test_the_runtime_lock_holds_versions_of_the_tests_and_no_tools() -> None:
    runtime, development = locked("requirements-runtime.lock"), locked("requirements.lock")
    assert runtime.items() < development.items()
    described = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = {re.split(r"[><=\[]", one)[0].lower() for one in described["project"]["dependencies"]}
    assert wanted <= {name.lower() for name in runtime}
    assert not runtime.keys() & {"pytest", "mypy", "hypothesis", "pyjks", "jgo"}


@pytest.mark.parametrize("lock", [*LOCKS, "requirements.lock", "requirements-build.lock"])
def test_each_locked_version_has_a_hash(lock: str) -> None:
    for block in re.split(r"\n(?=\S)", (ROOT / lock).read_text().strip()):
        assert block.startswith("#") or "--hash=sha256:" in block, block


@pytest.mark.parametrize("image", IMAGES, ids=lambda image: image.name)
def test_images_install_by_hash_only(image: Path) -> None:
    text = image.read_text().replace("\\\n", " ")
    for line in re.findall(r"pip install [^&\n]*", text):
        assert "--require-hashes" in line or ("--no-deps" in line and "--no-build-isolation" in line), line
    assert set(re.findall(r"^FROM (\S+)", text, re.MULTILINE)) == {"${BASE}"}


def test_all_jars_of_the_default_release_are_pinned() -> None:
    pinned = maven_download.pinned_jars()
    assert {jar.name for jar in brokers.classpath(brokers.JARS)} == set(pinned)


def test_the_bill_names_each_package_and_jar_once() -> None:
    names = [one["name"] for one in bill()["components"]]
    assert len(names) == sum(len(locked(lock)) for lock in LOCKS) + len(JARS.read_text().splitlines())
    assert len({one["bom-ref"] for one in bill()["components"]}) == len(names)
