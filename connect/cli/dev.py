"""``heliograph dev``: Kafka clusters on this machine, until Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Final

import typer

from connect.core.errors import ConfigError, HeliographError
from connect.core.model import FACTOR_KEYS, NewTopic
from connect.embedded import cluster_config
from connect.embedded.brokers import KafkaCluster

if TYPE_CHECKING:
    from connect.kafka.security.connection_settings import ConnectionSettings

_CHECK_S: Final = 0.5
_HIGHEST_PORT: Final = 65_535
_ALIAS: Final = re.compile(r"[A-Za-z0-9_-]+")


def dev(
    clusters: Annotated[str, typer.Option(metavar="ALIAS,...", help="Names of the clusters to start.")] = "us,eu",
    nodes: Annotated[int, typer.Option(min=1, max=9, metavar="N", help="Brokers in each cluster.")] = 1,
    port_base: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=_HIGHEST_PORT,
            metavar="PORT",
            help="First client port. The others follow, then the mirror's REST. Default: free ports.",
        ),
    ] = None,
    topics: Annotated[str, typer.Option(metavar="TOPIC,...", help="Topics to create on the first cluster.")] = "",
) -> None:
    """Start Kafka clusters on this machine, print a mm2.properties for them, and remove them on Ctrl-C.

    To rehearse a failure, kill a broker by the process id that is printed. A SIGHUP to this command starts killed
    brokers again, with their data.
    """
    aliases = _aliases(clusters)
    rest_port = _rest_port(port_base, len(aliases), nodes)
    # SIGTERM ends the command like Ctrl-C, by an exception in this thread.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with ExitStack() as running:
        try:
            starting = (_start(alias, number * nodes, nodes, port_base) for number, alias in enumerate(aliases))
            started = list(map(running.enter_context, starting))
            _create(started[0], [name.strip() for name in topics.split(",") if name.strip()])
            print(properties({cluster.name: cluster.bootstrap for cluster in started}, f"http://localhost:{rest_port}"))
            print("# Save the lines above as mm2.properties, then: heliograph mirror mm2.properties")
            if not cluster_config.is_free(rest_port):
                used = "is in use: a mirror of this file runs, or change listeners above."
                print(f"# Port {rest_port}, for REST, {used}")
            for cluster in started:
                print(f"# Brokers of {cluster.name}: process {', '.join(str(node.pid) for node in cluster.nodes)}")
            print("# Ctrl-C stops them and removes their data.", flush=True)
            _watch(started)
        except KeyboardInterrupt:
            # Stopping takes a moment; further signals are ignored.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            print("stopping", flush=True)


def properties(bootstrap: Mapping[str, str], rest: str) -> str:
    """Return a ``mm2.properties`` that mirrors the first cluster to the second, if there are two; ``bootstrap``:
    addresses by alias; ``rest``: the URL at which the mirror serves its REST API."""
    flow = "->".join(list(bootstrap)[:2])
    lines = [
        f"clusters = {', '.join(bootstrap)}",
        *(f"{alias}.bootstrap.servers = {servers}" for alias, servers in bootstrap.items()),
        *(["", f"{flow}.enabled = true", f"{flow}.topics = .*", "tasks.max = 2"] if len(bootstrap) > 1 else []),
        "",
        "# Replicas of new topics: the brokers' default.",
        *(f"{key} = -1" for key in FACTOR_KEYS),
        "",
        "# REST: each flow is below /SOURCE/TARGET, /health and /metrics are at the top.",
        "dedicated.mode.enable.public.rest = true",
        f"listeners = {rest}",
        "",
    ]
    return "\n".join(lines)


def _aliases(clusters: str) -> list[str]:
    aliases = [alias.strip() for alias in clusters.split(",") if alias.strip()]
    wrong = [alias for alias in aliases if not _ALIAS.fullmatch(alias)]
    if wrong:
        raise ConfigError(f"--clusters: {', '.join(wrong)} is not an alias. Use letters, digits, - and _")
    if not aliases or len(set(aliases)) < len(aliases):
        raise ConfigError(f"--clusters: {clusters!r} is empty or has an alias twice. Use names such as us,eu")
    return aliases


def _rest_port(port_base: int | None, clusters: int, nodes: int) -> int:
    """Return where a mirror of the printed file serves REST. Raises ConfigError."""
    if port_base is None:
        return cluster_config.choose(1)[0]
    port = port_base + clusters * nodes
    if port > _HIGHEST_PORT:
        raise ConfigError(f"--port-base {port_base} leaves too few ports for {clusters} clusters of {nodes} nodes")
    return port


def _start(alias: str, first: int, nodes: int, port_base: int | None) -> KafkaCluster:
    ports = None if port_base is None else range(port_base + first, port_base + first + nodes)
    return KafkaCluster.start(alias, nodes=nodes, client_ports=ports)


def _create(cluster: KafkaCluster, topics: list[str]) -> None:
    from connect.kafka.security.connection_settings import connection_settings

    settings = connection_settings({"bootstrap.servers": cluster.bootstrap}, client_id="dev", where=cluster.name)
    asyncio.run(create_topics(settings, None, [NewTopic(name) for name in topics]))


async def create_topics(settings: ConnectionSettings, cluster: str | None, topics: list[NewTopic]) -> None:
    """Create topics. Raises HeliographError if one is refused."""
    from connect.kafka.log.topic_admin import Admin

    admin = Admin(settings, cluster)
    try:
        outcomes = await admin.create_topics(topics) if topics else {}
    finally:
        await admin.close()
    for error in filter(None, outcomes.values()):
        raise error


def _watch(clusters: list[KafkaCluster]) -> None:
    """Report each broker that ends, and start those again on SIGHUP, without end. Raises KeyboardInterrupt if the
    terminal is closed, which sends SIGHUP too; not under nohup."""
    hung_up = threading.Event()
    is_ignored = signal.signal(signal.SIGHUP, lambda *_: hung_up.set()) == signal.SIG_IGN
    had_terminal = _has_terminal() and not is_ignored
    dead: list[tuple[KafkaCluster, int]] = []
    while True:
        for cluster in clusters:
            for index in range(len(cluster.nodes)):
                if not cluster.alive(index) and (cluster, index) not in dead:
                    dead.append((cluster, index))
                    # Not the log's last lines: after a SIGKILL they say nothing, and hide what is above them.
                    said = f"broker {index + 1} has ended. Its log: {cluster.log_file(index)}"
                    print(f"# cluster {cluster.name}: {said}\n# To start it again: kill -HUP {os.getpid()}", flush=True)
        if hung_up.is_set():
            hung_up.clear()
            if had_terminal and not _has_terminal():
                raise KeyboardInterrupt
            for cluster, index in tuple(dead):
                try:
                    cluster.start_node(index)
                except HeliographError as error:
                    print(f"heliograph: error: {error}", file=sys.stderr, flush=True)
                    continue
                dead.remove((cluster, index))
                print(f"# cluster {cluster.name}: broker {index + 1} is process {cluster.nodes[index].pid}", flush=True)
        time.sleep(_CHECK_S)


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True
