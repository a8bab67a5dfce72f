"""A TCP proxy between a Kafka client and a broker that makes the network's failures on purpose, in its own thread."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Literal, Self, TypeVar

from connect.embedded import cluster_config
from tests.kit.pipe import Direction, Pipe, Weather
from tests.kit.proxied import ConnectionState, ProxiedConnection

_CALL_TIMEOUT_S = 60.0
_LISTEN_TRIES = 4
T = TypeVar("T")


Where = Callable[[ConnectionState], bool]


def everywhere(_: ConnectionState) -> bool:
    return True


Action = Literal["cut", "hold", "stall", "half-close"]


@dataclass(slots=True)
class _Tripwire:
    direction: Direction
    remaining_bytes: int
    where: Where
    action: Action
    tripped: threading.Event = field(default_factory=threading.Event)


class FaultProxy:
    """Passes 127.0.0.1 to one upstream address, until told otherwise, alike for a seed; called from any thread."""

    def __init__(self, host: str, port: int, seed: int) -> None:
        self._upstream = (host, port)
        self._chance = random.Random(seed)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"fault-proxy-{host}:{port}", daemon=True)
        self._server: asyncio.Server | None = None
        self._accepted_count = 0
        self._connections: dict[int, ProxiedConnection] = {}
        self._weather = {direction: Weather() for direction in Direction}
        self._hold_new = dict.fromkeys(Direction, False)
        self._tripwires: list[_Tripwire] = []
        self._gone_bytes = dict.fromkeys(Direction, 0)
        self._gone_dropped_bytes = 0
        self._gone_requests: dict[str | None, Counter[int]] = {}
        self.port = 0

    @classmethod
    def start(cls, host: str, port: int, *, seed: int = 0) -> Self:
        """A running proxy before ``host:port``, on an uncommon port."""
        proxy = cls(host, port, seed)
        proxy._thread.start()
        try:
            proxy._listen_somewhere()
        except BaseException:
            proxy.close()
            raise
        return proxy

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", self.port

    def hold(
        self, direction: Direction = Direction.REQUESTS, where: Where = everywhere, *, new_too: bool = False
    ) -> int:
        """Keep the bytes even if their sender dies; how many connections. ``new_too``: a successor's as well."""
        return self._call(self._hold(direction, where, new_too))

    def release(self, where: Where = everywhere) -> None:
        self._call(self._release(where))

    def stall(self, direction: Direction = Direction.REQUESTS, where: Where = everywhere) -> None:
        """Read no more: the sender's own socket fills, as behind a dead router. :meth:`resume` ends it."""
        self._call(self._stall(direction, where, True))

    def resume(self, direction: Direction = Direction.REQUESTS, where: Where = everywhere) -> None:
        self._call(self._stall(direction, where, False))

    def cut(self, where: Where = everywhere) -> int:
        """Reset connections on both sides, dropping what is on the way; how many there were."""
        return self._call(self._cut(where))

    def cut_after(
        self, count_bytes: int, direction: Direction = Direction.REQUESTS, where: Where = everywhere
    ) -> threading.Event:
        """Let exactly so many more bytes pass, then cut the connection that carried the last one; set when done."""
        return self._call(self._arm(_Tripwire(direction, count_bytes, where, "cut")))

    def half_close_after(
        self, count_bytes: int, direction: Direction = Direction.REQUESTS, where: Where = everywhere
    ) -> threading.Event:
        """Let so many more bytes pass, then end (FIN) that direction of their connection; set when done."""
        return self._call(self._arm(_Tripwire(direction, count_bytes, where, "half-close")))

    def hold_after(
        self, count_bytes: int, direction: Direction = Direction.REQUESTS, where: Where = everywhere
    ) -> threading.Event:
        """Let exactly so many more bytes pass, then hold every connection of ``where``; set when done."""
        return self._call(self._arm(_Tripwire(direction, count_bytes, where, "hold")))

    def stall_after(
        self, count_bytes: int, direction: Direction = Direction.REQUESTS, where: Where = everywhere
    ) -> threading.Event:
        """Let exactly so many more bytes pass, then stall every connection of ``where``; set when done."""
        return self._call(self._arm(_Tripwire(direction, count_bytes, where, "stall")))

    def delay(self, direction: Direction, delay_ms: float, jitter_ms: float = 0.0) -> None:
        self._call(self._set_weather(direction, delay_ms=delay_ms, jitter_ms=jitter_ms))

    def limit(self, direction: Direction, bytes_per_s: float | None) -> None:
        self._call(self._set_weather(direction, bytes_per_s=bytes_per_s))

    def refuse(self) -> None:
        self._call(self._refuse())

    def accept(self) -> None:
        self._call(self._listen(self.port))

    def connections(self) -> list[ConnectionState]:
        """Every connection that still has an open side or bytes on the way."""
        return self._call(self._states())

    def passed_bytes(self, direction: Direction) -> int:
        return self._call(self._passed(direction))

    def dropped_bytes(self) -> int:
        """What cuts and half-closed directions have lost, over all connections there ever were."""
        return self._call(self._dropped())

    def requests(self) -> dict[str | None, Counter[int]]:
        """Requests by client id and API key, over all connections there ever were; held ones were sent and count."""
        return self._call(self._requests())

    def kept_bytes(self, direction: Direction = Direction.REQUESTS) -> int:
        """On the way or held, over all connections."""
        return sum(state.kept_bytes[direction] for state in self.connections())

    def unread_bytes(self, direction: Direction, where: Where = everywhere) -> int:
        """What stalled senders have sent and nobody has read."""
        return self._call(self._unread(direction, where))

    def accepted(self) -> int:
        return self._call(self._count_accepted())

    def close(self) -> None:
        """Cut everything and end the thread. May be called twice."""
        if self._loop.is_closed():
            return
        with contextlib.suppress(TimeoutError):
            self._call(self._shut())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CALL_TIMEOUT_S)
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(_CALL_TIMEOUT_S)

    def _listen_somewhere(self) -> None:
        for tries_left in reversed(range(_LISTEN_TRIES)):
            try:
                self._call(self._listen(*cluster_config.choose(1)))
                return
            except OSError:  # somebody was faster
                if not tries_left:
                    raise

    async def _listen(self, port: int) -> None:
        self._server = await self._loop.create_server(self._accepted, "127.0.0.1", port)
        self.port = self._server.sockets[0].getsockname()[1]

    def _accepted(self) -> asyncio.Protocol:
        index = self._accepted_count
        self._accepted_count += 1
        connection = ProxiedConnection(index, self._upstream, self._new_pipe, self._forget)
        self._connections[index] = connection
        return connection.client_side

    async def _refuse(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _shut(self) -> None:
        await self._refuse()
        await self._cut(everywhere)
        for connection in list(self._connections.values()):
            await connection.finished()

    def _selected(self, where: Where) -> Iterator[ProxiedConnection]:
        for connection in list(self._connections.values()):
            if where(connection.state()):
                yield connection

    async def _hold(self, direction: Direction, where: Where, new_too: bool) -> int:
        self._hold_new[direction] |= new_too
        return self._hold_now(direction, where)

    def _hold_now(self, direction: Direction, where: Where) -> int:
        selected = list(self._selected(where))
        for connection in selected:
            connection.pipes[direction].held = True
            connection.pipes[direction].pump()
        return len(selected)

    async def _release(self, where: Where) -> None:
        self._hold_new = dict.fromkeys(Direction, False)
        for connection in self._selected(where):
            for pipe in connection.pipes.values():
                pipe.held = False
                pipe.pump()

    async def _stall(self, direction: Direction, where: Where, stalled: bool) -> None:
        self._stall_now(direction, where, stalled)

    def _stall_now(self, direction: Direction, where: Where, stalled: bool) -> None:
        for connection in self._selected(where):
            connection.pipes[direction].stalled = stalled
            connection.pipes[direction].pump()

    async def _cut(self, where: Where) -> int:
        selected = list(self._selected(where))
        for connection in selected:
            connection.cut()
        return len(selected)

    async def _set_weather(self, direction: Direction, **changes: float | None) -> None:
        for name, value in changes.items():
            setattr(self._weather[direction], name, value)
        for connection in self._connections.values():
            connection.pipes[direction].pump()

    async def _states(self) -> list[ConnectionState]:
        return [connection.state() for connection in self._connections.values()]

    async def _passed(self, direction: Direction) -> int:
        alive = sum(connection.pipes[direction].passed_bytes for connection in self._connections.values())
        return alive + self._gone_bytes[direction]

    async def _dropped(self) -> int:
        pipes = [pipe for connection in self._connections.values() for pipe in connection.pipes.values()]
        return self._gone_dropped_bytes + sum(pipe.dropped_bytes for pipe in pipes)

    async def _requests(self) -> dict[str | None, Counter[int]]:
        found = {client_id: counts.copy() for client_id, counts in self._gone_requests.items()}
        for connection in self._connections.values():
            found.setdefault(connection.spotter.client_id, Counter()).update(connection.spotter.requests)
        return found

    async def _unread(self, direction: Direction, where: Where) -> int:
        return sum(connection.unread_bytes(direction) for connection in self._selected(where))

    async def _count_accepted(self) -> int:
        return self._accepted_count

    async def _arm(self, tripwire: _Tripwire) -> threading.Event:
        self._tripwires.append(tripwire)
        return tripwire.tripped

    # What follows is called by the connections, on the loop.

    def _new_pipe(self, direction: Direction, owner: ProxiedConnection) -> Pipe:
        def allowance(_: Pipe, count: int) -> int:
            return min([count, *(wire.remaining_bytes for wire in self._crossed(direction, owner))])

        def passed(_: Pipe, count: int) -> None:
            for wire in list(self._crossed(direction, owner)):
                wire.remaining_bytes -= count
                if not wire.remaining_bytes:
                    self._trip(wire, owner)

        pipe = Pipe(
            direction, self._weather[direction], random.Random(self._chance.random()), allowance, passed, owner.settle
        )
        pipe.held = self._hold_new[direction]
        return pipe

    def _crossed(self, direction: Direction, owner: ProxiedConnection) -> Iterator[_Tripwire]:
        for wire in self._tripwires:
            if wire.direction is direction and wire.where(owner.state()):
                yield wire

    def _trip(self, wire: _Tripwire, owner: ProxiedConnection) -> None:
        self._tripwires.remove(wire)
        match wire.action:
            case "cut":
                owner.cut(deliver=wire.direction)
            case "half-close":
                owner.pipes[wire.direction].break_off()
            case "hold":
                self._hold_now(wire.direction, wire.where)
            case "stall":
                self._stall_now(wire.direction, wire.where, True)
        wire.tripped.set()

    def _forget(self, connection: ProxiedConnection) -> None:
        if self._connections.pop(connection.index, None):
            for direction, pipe in connection.pipes.items():
                self._gone_bytes[direction] += pipe.passed_bytes
                self._gone_dropped_bytes += pipe.dropped_bytes
            spotter = connection.spotter
            self._gone_requests.setdefault(spotter.client_id, Counter()).update(spotter.requests)


def put_before(exits: ExitStack, proxies: list[FaultProxy], seed: int = 0) -> Callable[[int, int], tuple[str, int]]:
    """What a cluster's ``advertised`` is that puts a proxy before each node, into ``proxies`` by the node's index."""

    def advertised(node: int, port: int) -> tuple[str, int]:
        proxy = exits.enter_context(FaultProxy.start("127.0.0.1", port, seed=seed + node))
        proxies[node : node + 1] = [proxy]  # again when a start is tried again on other ports
        return proxy.address

    return advertised
