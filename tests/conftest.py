"""Fixtures for every test: two shared clusters, started when a test first asks for one."""

from __future__ import annotations

import functools
import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, settings

from connect.embedded import cluster_config
from tests.kit.brokers import KafkaCluster
from tests.kit.mirror import Mirror
from tests.kit.shared_mirror import LISTENERS

# How long an example takes says how busy the machine is, and nothing of the code. Each run tries others.
settings.register_profile("patient", deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

# Retention, compaction and time-outs of transactions look at their work often, so that tests of them wait for a second
# and not for minutes; and quotas are kept within two seconds, not within eleven.
EAGER = {
    "log.initial.task.delay.ms": "500",
    "log.retention.check.interval.ms": "500",
    "log.cleaner.backoff.ms": "500",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    "quota.window.num": "2",
    # A node without work writes no record of its own every half second.
    "metadata.max.idle.interval.ms": "0",
    # No test breaks these nodes, and a busy machine may stop one for seconds.
    "broker.session.timeout.ms": "30000",
}


#: Of the processes that run tests at a time, this one's number, and how many there are.
_PROCESS: Final = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_PROCESSES: Final = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))


def _choose_ports_of_our_own() -> None:
    """Where several processes run tests at a time, each has a share of the ports: what one has chosen, and does not
    listen on yet, no other takes."""
    share = (cluster_config._HIGHEST - cluster_config._LOWEST) // _PROCESSES
    cluster_config._LOWEST += _PROCESS * share
    cluster_config._HIGHEST = cluster_config._LOWEST + share


def _accept_sigint() -> None:
    """A background job of a shell ignores SIGINT, and so would every command that a test starts."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


_choose_ports_of_our_own()
_accept_sigint()

#: So many mirrors may `make test` start, at seven CPU-seconds and more each. A test that needs only a flow of its own
#: joins tests/integration/flows, where one mirror has all flows.
_MOST_MIRRORS = 15
_MIRRORS = "mirrors"

#: Seconds for a test of `make long`, unless it names its own.
_LONG_TIMEOUT_S = 1800


def pytest_configure(config: pytest.Config) -> None:
    """Let each process begin with another folder, the largest first: what one has compiled, the others load."""
    if _PROCESSES > 1 and config.args == config.getini("testpaths"):
        tests = Path(__file__).parent
        files = {one: len([*one.rglob("test_*.py")]) for one in [*tests.glob("*/"), *tests.glob("unit/*/")]}
        folders = sorted(
            (one for one in files if files[one] and one.name != "unit"), key=lambda one: (-files[one], one)
        )
        config.args = [str(one) for one in folders[_PROCESS:] + folders[:_PROCESS]]


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    """Give long tests a longer time-out, and put files with slow tests first, then others with real brokers: none
    starts when the rest is done."""
    items.sort(key=lambda item: item.path)  # the same order in each process, before it is shuffled
    yield
    for item in items:
        if item.get_closest_marker("long") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(_LONG_TIMEOUT_S))
    order = {share: index for index, share in enumerate(dict.fromkeys(_share(item.path) for item in items))}
    slow, integration = (
        {_share(item.path) for item in items if item.get_closest_marker(name)} for name in ("slow", "integration")
    )
    items.sort(
        key=lambda item: (_share(item.path) not in slow, _share(item.path) not in integration, order[_share(item.path)])
    )


@functools.cache
def _share(file: Path) -> Path:
    """Return what runs in one process: a file, or its folder if the folder is a package, whose tests share a mirror."""
    return file.parent if (file.parent / "__init__.py").is_file() else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With ``--dist loadfile``, give a package of tests to one process."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class LoadShares(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return str(_share(config.rootpath / nodeid.partition("::")[0]))

    return LoadShares(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Add the mirrors that a process has started to those of all."""
    Mirror.started += getattr(node, "workeroutput", {}).get(_MIRRORS, 0)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail `make test` where it has started more mirrors than it may."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput[_MIRRORS] = Mirror.started
    elif session.config.getoption("markexpr") == "not long" and Mirror.started > _MOST_MIRRORS:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        assert reporter is not None
        reporter.write_line(f"\n{Mirror.started} mirrors were started, more than {_MOST_MIRRORS}", red=True)


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """A command that runs within a test sets up the log of its process, which is that of all tests."""
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    yield
    root.setLevel(level)
    root.handlers[:] = handlers


@pytest.fixture(scope="session")
def us() -> Iterator[KafkaCluster]:
    """One node, shared by the whole run: a test names its own topics, and breaks nothing here."""
    with KafkaCluster.start("us", config=EAGER) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def eu() -> Iterator[KafkaCluster]:
    """The second shared cluster, under the same rules."""
    with KafkaCluster.start("eu", config=EAGER, listeners=LISTENERS) as cluster:
        yield cluster
