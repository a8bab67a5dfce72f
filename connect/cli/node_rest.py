"""The REST server of a dedicated mirror's node. Only nodes that serve one import this: it loads a web framework."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from connect.cli.flow_worker import FlowRest, FlowWorker
from connect.cli.metrics import ProcessMetrics
from connect.cli.rest_tls import rest_tls
from connect.core.rest_defs import REST_INTERNAL
from connect.runtime.distributed import DistributedWorker
from connect.runtime.loop_watch import LoopWatch
from connectors.flows import Flow
from connectors.source.host import MirrorHost
from rest.app import Part
from rest.forward import InternalClient
from rest.server import RestServer
from rest.settings import RestSettings


class NodeRest:
    """One server for all flows of a node.

    Args:
        props: The file's keys that are no cluster's and no flow's.
        watch: Of the loop that all run in, for metrics.
        public: The whole API for users, or what nodes ask of each other alone.

    Raises:
        ConfigError: A setting of the server is refused.
    """

    def __init__(self, props: Mapping[str, str], watch: LoopWatch, *, public: bool) -> None:
        self._public = public
        self._workers: Sequence[FlowWorker] = ()
        self._server = RestServer(
            RestSettings.of(REST_INTERNAL.parse(props)),
            tls=rest_tls(props),
            metrics=ProcessMetrics(self._watched, watch),
        )

    @property
    def public_url(self) -> str | None:
        """Where users find the API; None where it is not for them."""
        return self._server.advertised_url if self._public else None

    async def start(self) -> None:
        """Bind the listeners; raises where an address is not free or not ours."""
        await self._server.start()
        await self._server.prepare(Part.ALL if self._public else Part.INTERNAL)

    def of_flow(self, flow: Flow) -> FlowRest:
        """The way from a flow's worker to those on other nodes."""
        return FlowRest(self._server.advertised_url, InternalClient(self._server.forwarder, (flow.source, flow.target)))

    def serve(self, workers: Sequence[FlowWorker]) -> None:
        """Answer for these workers; to be told again when one is another."""
        self._workers = tuple(workers)
        herders = {(each.flow.source, each.flow.target): each.herder for each in workers}
        self._server.serve_flows(herders, public=self._public)

    async def stop(self) -> None:
        await self._server.stop()

    def _watched(self) -> list[tuple[DistributedWorker, MirrorHost]]:
        return [(each.worker, each.host) for each in self._workers]
