"""On what and with what a run was made, for those who read its figures."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Final

import psutil

from bench.rows import Run
from connect.embedded.java import find_java
from tests.kit.java_program import KAFKA_VERSION

_REPOSITORY: Final = Path(__file__).parents[1]


def this_run(command: str) -> Run:
    now = datetime.datetime.now(datetime.UTC)
    return Run(f"{now:%Y-%m-%d %H:%M:%S}", command, _machine(), _versions())


def _machine() -> dict[str, str]:
    return {
        "processor": f"{os.cpu_count()} cores, {_processor()}",
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.release().partition('-')[0]}, {platform.machine()}",
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.processor() or "unknown"


def _versions() -> dict[str, str]:
    java = subprocess.run([str(find_java().executable), "-version"], capture_output=True, text=True, check=True)
    return {
        "Heliograph": _git("describe", "--always", "--dirty", "--exclude", "*"),
        "Kafka and MirrorMaker 2": KAFKA_VERSION,
        "Java": java.stderr.splitlines()[0],
        "Spark": version("pyspark"),
        "Python": platform.python_version(),
    }


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=_REPOSITORY, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"
