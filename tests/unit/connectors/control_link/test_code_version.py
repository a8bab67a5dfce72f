"""The project's code as an archive: the same bytes each time, whole, and recognised by who runs it."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from connectors.control_link import code_version

ROOT = Path(code_version.__file__).parents[2]


def test_the_same_code_gives_the_same_bytes_and_name(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
    one, two = (code_version.make_archive(folder) for folder in folders)
    assert one.name == two.name
    assert one.read_bytes() == two.read_bytes()


def test_it_holds_every_module_and_whoever_runs_from_it_says_its_name(tmp_path: Path) -> None:
    path = code_version.make_archive(tmp_path)
    with zipfile.ZipFile(path) as archive:
        held = set(archive.namelist())
    modules = [module for package in code_version.PACKAGES for module in (ROOT / package).rglob("*.py")]
    assert held == {str(module.relative_to(ROOT)) for module in modules}
    script = (
        f"import sys; sys.path.insert(0, {str(path)!r}); from connectors.dataplane import slice as executor; from "
        f"connectors.control_link import code_version as shipping; "
        "print(shipping.running_code(), shipping.running_from())"
    )
    run = subprocess.run([sys.executable, "-P", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert run.stdout.split() == [path.stem, str(path)]


def test_installed_code_is_named_after_its_content_and_found_where_it_lies() -> None:
    assert code_version.running_code() == named(ROOT)
    assert code_version.running_from() == str(ROOT)


@pytest.mark.parametrize(
    ("module", "differs"),
    [("connectors/control_link/protocol.py", True), ("connect/wire/batch.py", True), ("connect/cli/main.py", False)],
)
def test_other_code_of_the_same_version_has_another_name(tmp_path: Path, module: str, differs: bool) -> None:
    with zipfile.ZipFile(code_version.make_archive(tmp_path)) as archive:
        archive.extractall(tmp_path / "tree")
    assert named(tmp_path / "tree") == code_version.running_code()
    changed = tmp_path / "tree" / module
    changed.write_text(changed.read_text() + "\n")
    assert (named(tmp_path / "tree") != code_version.running_code()) is differs


def named(tree: Path) -> str:
    """What a process says that it runs which has the code out of a folder."""
    script = (
        f"import sys; sys.path.insert(0, {str(tree)!r}); from connectors.control_link import code_version as code; "
    )
    command = [sys.executable, "-P", "-c", script + "print(code.running_code())"]
    run = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=True)
    return run.stdout.strip()
