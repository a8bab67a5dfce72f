"""``deploy/``: each file under the linter of its kind, and what they name is there."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from connect.cli.console import EXIT_FOUND
from connect.core.config.properties import ConfigTransformer, parse_properties
from connectors.config.mm2_properties import load, mirrored

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
IMAGES = sorted((DEPLOY / "images").glob("*.Dockerfile"))
COMPOSE = DEPLOY / "compose" / "compose.yaml"
VERIFY = DEPLOY / "kubernetes" / "verify.yaml"
PROGRAMS = Path(sys.executable).parent


def said(*command: str) -> str:
    """What a linter has to say; nothing where it is content. An ``AssertionError`` where it fails."""
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    reported = ended.stdout + ended.stderr
    assert ended.returncode == 0, reported
    return reported


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="this machine has no systemd")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_is_one(unit: Path, tmp_path: Path) -> None:
    here = tmp_path / unit.name
    # It looks for the program as well.
    here.write_text(unit.read_text().replace("/opt/heliograph/bin", str(PROGRAMS)))
    # It reads other units of this machine as well, which may be wrong.
    reported = said("systemd-analyze", "verify", "--man=no", str(here)).splitlines()
    assert [line for line in reported if unit.name in line] == []


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="this machine has no systemd")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_has_few_privileges(unit: Path) -> None:
    """Of 10 points of exposure; what sends and receives has some."""
    said("systemd-analyze", "security", "--offline=true", "--no-pager", "--threshold=20", str(unit))


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_starts_a_command_of_ours(unit: Path) -> None:
    (program,) = re.findall(r"^ExecStart=/opt/heliograph/bin/(\S+) ", unit.read_text(), re.MULTILINE)
    assert (PROGRAMS / program).exists()


@pytest.mark.parametrize("file", [*UNITS, ROOT / "docs" / "deploy.md"], ids=lambda file: file.name)
def test_references_to_the_environment_lead_to_it_by_the_lines_that_stand_beside(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NAME", "hush")
    text = file.read_text("utf-8")
    assert "${env:NAME}" in text or "${env:TRUST_PASSWORD}" in text
    lines = re.findall(r"^[# ]+(config\.providers\b.*)$", text, re.MULTILINE)
    props = parse_properties("\n".join([*lines, "password = ${env:NAME}"]))
    assert ConfigTransformer(props).transform(props)["password"] == "hush"


@pytest.mark.parametrize("image", IMAGES, ids=lambda image: image.name)
def test_an_image_is_described_well(image: Path) -> None:
    assert said(str(PROGRAMS / "hadolint"), str(image)) == ""


@pytest.mark.parametrize("image", IMAGES, ids=lambda image: image.name)
def test_what_an_image_copies_is_there_and_is_not_ignored(image: Path) -> None:
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for sources in re.findall(r"^COPY (?!--from)(.+) \S+$", image.read_text(), re.MULTILINE):
        for source in sources.split():
            assert (ROOT / source).exists(), source
            assert source in kept


def test_the_compose_file_keeps_to_its_specification() -> None:
    assert "ok" in said(str(PROGRAMS / "check-jsonschema"), "--builtin-schema", "vendor.compose-spec", str(COMPOSE))


def test_what_the_compose_file_names_is_there() -> None:
    services = yaml.safe_load(COMPOSE.read_text())["services"]
    for service in services.values():
        assert set(service.get("depends_on", ())) <= set(services)
        if build := service.get("build"):
            assert (COMPOSE.parent / build["context"] / build["dockerfile"]).is_file()
        for volume in service.get("volumes", ()):
            assert (COMPOSE.parent / volume.partition(":")[0]).exists()
    config = load(COMPOSE.parent / "mm2.properties")
    (flow,) = mirrored(config.flows_to_run())
    flow.settings()
    for alias in (flow.source, flow.target):
        host, _, port = config.client_properties(alias)["bootstrap.servers"].partition(":")
        assert f"PLAINTEXT://{host}:{port}" in services[host]["environment"]["KAFKA_ADVERTISED_LISTENERS"]


def test_the_compose_file_gives_our_services_few_privileges() -> None:
    services = yaml.safe_load(COMPOSE.read_text())["services"]
    ours = [service for service in services.values() if "build" in service]
    assert len(ours) == 3
    for service in ours:
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert service["mem_limit"]


def test_the_cron_job_runs_a_command_of_ours_with_few_privileges() -> None:
    job = yaml.safe_load(VERIFY.read_text())["spec"]["jobTemplate"]["spec"]
    pod = job["template"]["spec"]
    (container,) = pod["containers"]
    # Up to --help, which ends the command once it has read all arguments before.
    said(str(PROGRAMS / "heliograph"), *container["args"], "--help")
    (rule,) = job["podFailurePolicy"]["rules"]
    assert rule["onExitCodes"] == {"containerName": container["name"], "operator": "In", "values": [EXIT_FOUND]}
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert pod["securityContext"]["runAsNonRoot"] is True
