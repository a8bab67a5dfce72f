"""How Spark is started or reached: the user's ``spark.*`` keys, the defaults for the others, and the task slots."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Final

from connect.core.errors import ConfigError
from connectors.spark.python_daemon import PLACE_VARIABLE

_MASTER: Final = "spark.master"
_REMOTE: Final = "spark.remote"
_CORES: Final = "spark.cores.max"
_LOCAL_DIR: Final = "spark.local.dir"
_PYTHON: Final = "spark.pyspark.python"
_JAVA_OPTIONS_KEY: Final = "spark.driver.extraJavaOptions"
_DAEMON_KEY: Final = "spark.python.daemon.module"
_DAEMON: Final = "connectors.spark.python_daemon"

#: Records do not pass through the JVM, so it is tuned for fast start and small memory: C1 only, one GC thread.
JAVA_OPTIONS: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xss512k -Xlog:disable -Xlog:all=error:stderr"

INSECURE: Final = "spark.insecure"
_SECRET: Final = "spark.authenticate.secret"
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
#: A plan carries the token and the certificate of the control link, and other users of a machine reach the ports of its
#: driver. Spark makes the secret itself on this machine, on YARN and on Kubernetes.
PROTECTION: Final[Mapping[str, str]] = {
    "spark.authenticate": "true",
    "spark.network.crypto.enabled": "true",
    "spark.io.encryption.enabled": "true",
}
#: Spark's default cipher does not notice changed bytes.
_CIPHER: Final = {"spark.network.crypto.cipher": "AES/GCM/NoPadding"}

#: Keys that a session of any kind can set.
_SESSION_CONF: Final[Mapping[str, str]] = {
    "spark.sql.adaptive.enabled": "false",
    # Spark collects this many rows before it passes a record on through transform.sql.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "500",
    "spark.sql.execution.arrow.pyspark.validateSchema.enabled": "true",
}
#: Keys that make Spark start fast, use little memory and stop soon.
_DRIVER_CONF: Final[Mapping[str, str]] = {
    **_SESSION_CONF,
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.driver.memory": "512m",
    "spark.locality.wait": "0",
    "spark.scheduler.mode": "FAIR",
    # Because a second attempt next to a live one would be a second writer.
    "spark.speculation": "false",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.python.worker.reuse": "true",
    "spark.python.task.killTimeout": "200ms",
}
_LOCAL_CONF: Final[Mapping[str, str]] = {
    **_DRIVER_CONF,
    _MASTER: "local[64,4]",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    _DAEMON_KEY: _DAEMON,
}
_CLUSTER_CONF: Final[Mapping[str, str]] = {
    **_DRIVER_CONF,
    "spark.executor.extraJavaOptions": JAVA_OPTIONS,
    # Because a second attempt would find its token used; the task starts a new job instead, which needs the slot.
    "spark.task.maxFailures": "1",
    "spark.executorEnv.OPENBLAS_NUM_THREADS": "1",
    # Because the next slice waits until Spark gives up a frozen executor, by default after two minutes.
    "spark.network.timeout": "60s",
    "spark.network.timeoutInterval": "15s",
}
#: Variables that would make pyspark override the file.
_MISLEADING: Final = ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "SPARK_API_MODE", "MASTER", "SPARK_LOCAL_REMOTE")
#: Only an orderly end tells a cluster that the application is done, and a Connect server to forget the session.
_CLOSE_TIMEOUT_S: Final = 1.5


class SparkKind(Enum):
    """Where the tasks run."""

    LOCAL = "this machine"
    CLUSTER = "a cluster whose driver runs here"
    CONNECT = "a Spark Connect server"


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """How Spark is started or reached. ``java_home``: the Java to run on, None for a Spark Connect client.

    ``conf``: the user's ``spark.*`` keys, which override all defaults. ``slices``: their maximum number, each needs a
    slot; ``slices_key`` is the setting or option that says how many. ``java_options``: more, for the driver's JVM.
    ``close_timeout_s``: how long an orderly end may take; None for the default of its kind. ``hidden``: environment
    variables that hold secrets of the file and are withheld from Spark's processes.
    """

    java_home: Path | None
    conf: Mapping[str, str] = field(default_factory=dict)
    slices: int = 1
    java_options: str = ""
    close_timeout_s: float | None = None
    hidden: frozenset[str] = frozenset()
    slices_key: str = "tasks.max"

    @property
    def kind(self) -> SparkKind:
        if _REMOTE in self.conf:
            return SparkKind.CONNECT
        master = self.conf.get(_MASTER, "local").strip()
        # "local-cluster" has separate executors.
        return SparkKind.LOCAL if re.match(r"local(\[|$)", master) else SparkKind.CLUSTER

    @property
    def place(self) -> str:
        """Where Spark is, for messages: without the token that a Connect URL may hold."""
        return self.conf.get(_REMOTE, "").partition(";")[0].rstrip("/") or self.merged()[_MASTER]

    @property
    def closing_s(self) -> float:
        if self.close_timeout_s is not None:
            return self.close_timeout_s
        return 0.0 if self.kind is SparkKind.LOCAL else _CLOSE_TIMEOUT_S

    def merged(self) -> dict[str, str]:
        """Return the keys for Spark; those for a Connect server still hold ``INSECURE``."""
        if self.kind is SparkKind.CONNECT:
            return {**_SESSION_CONF, **self.conf}
        options = f"{JAVA_OPTIONS} {self.java_options}".strip()
        protected = {} if is_insecure(self.conf) else {**PROTECTION, **_CIPHER}
        mine = {key: value for key, value in self.conf.items() if key != INSECURE}
        if self.kind is SparkKind.LOCAL:
            return {**_LOCAL_CONF, **protected, _JAVA_OPTIONS_KEY: options, **mine}
        # Because standalone Spark gives an application all cores by default.
        return {**_CLUSTER_CONF, **protected, _JAVA_OPTIONS_KEY: options, _CORES: str(self.slices), **mine}

    def environment(self, scratch: str) -> dict[str, str]:
        """Return the environment of the driver process; ``scratch`` is for its files, if the user names no folder."""
        left_out = self.hidden | set(_MISLEADING)
        kept = {name: value for name, value in os.environ.items() if name not in left_out}
        python = self.conf.get(_PYTHON) or kept.get("PYSPARK_PYTHON") if self.kind is SparkKind.CLUSTER else None
        return {
            **kept,
            **({"JAVA_HOME": str(self.java_home)} if self.java_home is not None else {}),
            **({"SPARK_LOCAL_IP": "127.0.0.1"} if self.kind is SparkKind.LOCAL else {}),
            **({"SPARK_LOCAL_DIRS": scratch} if _LOCAL_DIR not in self.conf else {}),
            **({PLACE_VARIABLE: str(Path(scratch) / "daemon")} if self.merged().get(_DAEMON_KEY) == _DAEMON else {}),
            "PYSPARK_PYTHON": python or sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            # Because numpy's thread pools take memory in each Python worker, and a copier never uses them.
            "OPENBLAS_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            # Else Python first looks for modules in the worker's current folder.
            "PYTHONSAFEPATH": "1",
        }

    def slots(self) -> int | None:
        """Return how many tasks can run at once; None if only Spark knows."""
        merged = self.merged()
        if self.kind is SparkKind.CLUSTER and (cores := merged[_CORES]).isdigit():
            return int(cores)
        match = re.fullmatch(r"local(?:\[(\d+|\*)(?:,\s*\d+)?\])?", merged.get(_MASTER, "").strip())
        if match is None:
            return None
        number = match.group(1)
        return (os.cpu_count() or 1) if number == "*" else int(number or 1)

    def slots_advice(self) -> str:
        """Return what to do if no slot becomes free."""
        wanted = f"{self.slices} slices need {self.slices} slots"
        if self.kind is SparkKind.CONNECT:
            return f"{wanted}; give the Spark Connect server more cores, or lower {self.slices_key}"
        return f"{wanted}; add executors or cores (spark.cores.max, spark.executor.cores), or lower {self.slices_key}"


def is_insecure(conf: Mapping[str, str]) -> bool:
    """Return whether a Spark is accepted that every host of its network can read and command."""
    return conf.get(INSECURE, "").strip().lower() == "true"


def unprotected(keys: str, place: str) -> ConfigError:
    return ConfigError(
        f"Spark at {place} does not encrypt what it sends or does not authenticate its processes; set {keys} "
        f"(docs/spark.md), or {INSECURE} = true if its network is trusted",
        key=keys.partition(" ")[0],
    )


def _check_protection(settings: SparkSettings) -> None:
    if is_insecure(settings.conf):
        return
    if settings.kind is SparkKind.CONNECT:
        url = settings.conf[_REMOTE]
        place = url.removeprefix("sc://").partition("/")[0]
        host = re.sub(r":\d+$", "", place).strip("[]")
        # As pyspark reads them: names as they are, the last of several.
        options = dict(each.partition("=")[::2] for each in url.partition("/;")[2].split(";"))
        if options.get("use_ssl", "").lower() != "true" and host not in _LOOPBACK:
            raise unprotected(f"{_REMOTE} = sc://host:port/;use_ssl=true", settings.place)
        return
    merged = settings.merged()
    wrong = [key for key, value in PROTECTION.items() if merged[key].strip().lower() != value]
    # Spark makes the secret itself on this machine, YARN and Kubernetes, and refuses masters that it does not know.
    if merged[_MASTER].strip().startswith(("spark:", "local-cluster")) and not merged.get(_SECRET):
        wrong.append(_SECRET)
    if wrong:
        keys = " and ".join(key if key == _SECRET else f"{key} = true" for key in wrong)
        raise unprotected(keys, settings.place)


def check_spark(settings: SparkSettings) -> None:
    """Raise :class:`ConfigError` if keys contradict each other, if Spark would send the plan in the clear, or if there
    are fewer slots than slices."""
    conf, slices = settings.conf, settings.slices
    if _REMOTE in conf:
        if _MASTER in conf:
            raise ConfigError(f"{_REMOTE} and {_MASTER} are both set; remove one of them", _REMOTE)
        if not conf[_REMOTE].startswith("sc://"):
            raise ConfigError(f"{_REMOTE} should be the address of a Spark Connect server, sc://host:port", _REMOTE)
    _check_protection(settings)
    if _REMOTE in conf:
        return
    slots = settings.slots()
    if slots is None or slots >= slices:
        return
    key, raised = (_MASTER, f"local[{slices},4]") if settings.kind is SparkKind.LOCAL else (_CORES, f"{slices}")
    raise ConfigError(
        f"{slices} slices need {slices} Spark slots, but {key} = {settings.merged()[key]} has {slots}; "
        f"raise it to {raised} or more, or lower {settings.slices_key}",
        key=key,
    )
