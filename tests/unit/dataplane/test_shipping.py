"""The project's code as an archive: the same bytes each time, whole, and recognised by who runs it."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from importlib.metadata import version
from pathlib import Path

from connectors.dataplane import shipping

ROOT = Path(shipping.__file__).parents[2]


def test_the_same_code_gives_the_same_bytes_and_name(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
    one, two = (shipping.make_archive(folder) for folder in folders)
    assert one.name == two.name
    assert one.read_bytes() == two.read_bytes()


def test_other_code_has_another_name(tmp_path: Path) -> None:
    before = shipping.make_archive(tmp_path)
    (tmp_path / "tree").mkdir()
    with zipfile.ZipFile(before) as archive:
        archive.extractall(tmp_path / "tree")
    changed = tmp_path / "tree/connectors/dataplane/plan.py"
    changed.write_text(changed.read_text() + "\n")
    script = (
        "from connectors.dataplane.shipping import make_archive; from pathlib import Path; print(make_archive(Path()))"
    )
    run = subprocess.run(
        [sys.executable, "-P", "-c", f"import sys; sys.path.insert(0, 'tree'); {script}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.startswith("heliograph-")
    assert run.stdout.strip() != before.name


def test_it_holds_every_module_and_whoever_runs_from_it_says_its_name(tmp_path: Path) -> None:
    path = shipping.make_archive(tmp_path)
    with zipfile.ZipFile(path) as archive:
        held = set(archive.namelist())
    modules = [module for package in shipping.PACKAGES for module in (ROOT / package).rglob("*.py")]
    assert held == {str(module.relative_to(ROOT)) for module in modules}
    script = (
        f"import sys; sys.path.insert(0, {str(path)!r}); from connectors.dataplane import executor, shipping; "
        "print(shipping.running_code(), shipping.running_from())"
    )
    run = subprocess.run([sys.executable, "-P", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert run.stdout.split() == [path.stem, str(path)]


def test_installed_code_is_named_by_its_version() -> None:
    assert shipping.running_code() == f"heliograph-{version('heliograph')}"
    assert shipping.running_from() == str(ROOT)
