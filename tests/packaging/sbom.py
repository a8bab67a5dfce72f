"""``python -m tests.packaging.sbom > sbom.json``: a bill of materials (CycloneDX 1.6) of packages and jars."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
LOCKS: Final = ("requirements-runtime.lock", "requirements-java.lock")
JARS: Final = ROOT / "connect" / "embedded" / "jars.sha256"
_PACKAGE: Final = re.compile(r"^([\w.-]+)==([^\s;]+)", re.MULTILINE)
_JAR: Final = re.compile(r"^([0-9a-f]{64}) {2}(.+)-(\d[\w.]*(?:-[\w.]+)*)\.jar$", re.MULTILINE)


def bill() -> dict[str, Any]:
    """Return the bill as JSON data, without time or serial number: the same locks give the same bill."""
    packages = sorted({found for lock in LOCKS for found in _PACKAGE.findall((ROOT / lock).read_text())})
    components = [_component(name, version, f"pkg:pypi/{name.lower()}@{version}") for name, version in packages]
    for digest, name, version in _JAR.findall(JARS.read_text()):
        jar = _component(name, version, f"pkg:generic/{name}@{version}")
        components.append({**jar, "hashes": [{"alg": "SHA-256", "content": digest}]})
    return {"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1, "components": components}


def _component(name: str, version: str, url: str) -> dict[str, Any]:
    return {"type": "library", "name": name, "version": version, "purl": url, "bom-ref": url}


if __name__ == "__main__":
    print(json.dumps(bill(), indent=2))
