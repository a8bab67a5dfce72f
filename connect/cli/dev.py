"""``heliograph dev``: Kafka clusters on this machine, until Ctrl-C."""

from __future__ import annotations

import re
import signal
import time
from contextlib import ExitStack
from typing import Annotated, Final

import typer

from connect.core.errors import ConfigError, PermanentError
from connect.embedded.brokers import KafkaCluster

_CHECK_S: Final = 0.5
_HIGHEST_PORT: Final = 65_535
_ALIAS: Final = re.compile(r"[A-Za-z0-9_-]+")


def dev(
    clusters: Annotated[str, typer.Option(metavar="ALIAS,...", help="Names of the clusters to start.")] = "us,eu",
    nodes: Annotated[int, typer.Option(min=1, max=9, help="Brokers in each cluster.")] = 1,
    port_base: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=_HIGHEST_PORT,
            help="First client port; the others follow. Default: free ports.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Start Kafka clusters on this machine, print their addresses, and remove them on Ctrl-C."""
    aliases = _aliases(clusters)
    if port_base is not None and port_base + len(aliases) * nodes - 1 > _HIGHEST_PORT:
        raise ConfigError(f"--port-base {port_base} leaves too few ports for {len(aliases)} clusters of {nodes} nodes")
    # SIGTERM ends the command like Ctrl-C, by an exception in this thread.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with ExitStack() as running:
        try:
            started = [
                running.enter_context(_start(alias, number * nodes, nodes, port_base))
                for number, alias in enumerate(aliases)
            ]
            print(f"clusters = {', '.join(aliases)}")
            for cluster in started:
                print(f"{cluster.name}.bootstrap.servers = {cluster.bootstrap}")
            print("Ctrl-C stops them and removes their data.", flush=True)
            _watch(started)
        except KeyboardInterrupt:
            # Stopping takes a moment; further signals are ignored.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            print("stopping", flush=True)


def _aliases(clusters: str) -> list[str]:
    aliases = [alias.strip() for alias in clusters.split(",") if alias.strip()]
    wrong = [alias for alias in aliases if not _ALIAS.fullmatch(alias)]
    if wrong:
        raise ConfigError(f"--clusters: {', '.join(wrong)} is not an alias. Use letters, digits, - and _")
    if not aliases or len(set(aliases)) < len(aliases):
        raise ConfigError(f"--clusters: {clusters!r} is empty or has an alias twice. Use names such as us,eu")
    return aliases


def _start(alias: str, first: int, nodes: int, port_base: int | None) -> KafkaCluster:
    ports = None if port_base is None else range(port_base + first, port_base + first + nodes)
    return KafkaCluster.start(alias, nodes=nodes, client_ports=ports)


def _watch(clusters: list[KafkaCluster]) -> None:
    """Watch the brokers without end. Raises PermanentError if one ends by itself."""
    while True:
        for cluster in clusters:
            for index, node in enumerate(cluster.nodes):
                if not cluster.alive(index):
                    tail = cluster.log_tail(index)
                    raise PermanentError(f"cluster {cluster.name}: node {node.node_id} ended; its log's end:\n{tail}")
        time.sleep(_CHECK_S)
