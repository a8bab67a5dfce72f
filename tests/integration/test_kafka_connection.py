"""Connections to real brokers: pipelined, over TLS, cut, stalled, refused."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from uuid import uuid4

import pytest
from kafka.protocol.consumer.fetch import FetchRequest
from kafka.protocol.metadata import MetadataRequest
from kafka.protocol.producer.transaction import AddPartitionsToTxnRequest

from connect.core.errors import ClusterUnreachable, RetriableError
from connect.kafka.connection import Connection, RequestTimedOut, UnsupportedVersion
from connect.kafka.framing_and_sasl import ConnectionLost
from connect.wire import records
from tests.kit.batches import produce_request
from tests.kit.brokers import KafkaCluster
from tests.kit.clients import cluster_at, settings_of
from tests.kit.pipe import Direction
from tests.kit.proxy import FaultProxy
from tests.kit.topics import make_topics

pytestmark = pytest.mark.integration

METADATA_OF_NOTHING = b"\x01\x00\x00\x00"  # MetadataRequest 12: no topics, no creation, no rights, no tags


@pytest.fixture
async def plain(us: KafkaCluster) -> AsyncIterator[Connection]:
    connection = await Connection.open(settings_of(us.bootstrap), "127.0.0.1", us.nodes[0].port)
    yield connection
    await connection.close()


@pytest.fixture
def proxy(us: KafkaCluster) -> Iterator[FaultProxy]:
    with FaultProxy.start("127.0.0.1", us.nodes[0].port) as proxy:
        yield proxy


async def through(proxy: FaultProxy, **properties: str) -> Connection:
    host, port = proxy.address
    return await Connection.open(settings_of(f"{host}:{port}", **properties), host, port)


async def test_many_requests_in_flight(plain: Connection) -> None:
    began_s = time.monotonic()
    answers = [plain.send(3, 12, [METADATA_OF_NOTHING]) for _ in range(200)]
    assert plain.in_flight == 200
    bodies = await asyncio.gather(*answers)
    assert len({bytes(body) for body in bodies}) == 1
    assert not bodies[0].readonly
    assert plain.idle_s <= time.monotonic() - began_s


async def test_answers_far_larger_than_the_scratch_buffer(us: KafkaCluster, plain: Connection) -> None:
    topic, value = f"large-{uuid4()}", bytes(range(256)) * 3000
    await make_topics(us.bootstrap, {topic: 1})
    batch = bytes(records.build([records.Record(0, int(time.time() * 1000), None, value, [])], 0, -1, -1, -1))
    for _ in range(3):
        answer = await plain.call(produce_request(topic, 0, batch), at_most=11)
        assert answer.responses[0].partition_responses[0].error_code == 0
    wanted = FetchRequest.FetchTopic.FetchPartition(
        partition=0, fetch_offset=0, partition_max_bytes=10_000_000, current_leader_epoch=-1, last_fetched_epoch=-1
    )
    fetch = FetchRequest(
        max_wait_ms=1000,
        min_bytes=3 * len(value),
        max_bytes=10_000_000,
        session_epoch=-1,
        topics=[FetchRequest.FetchTopic(topic=topic, partitions=[wanted])],
    )
    answers = await asyncio.gather(*(plain.call(fetch, 12) for _ in range(4)))
    for answer in answers:
        row = answer.responses[0].partitions[0]
        assert (row.error_code, row.high_watermark) == (0, 3)
        fetched = bytes(row.records)
        assert fetched.count(value) == 3


async def test_socket_buffers_are_as_they_are_set(us: KafkaCluster) -> None:
    settings = replace(settings_of(us.bootstrap), send_buffer_bytes=32_000, receive_buffer_bytes=48_000)
    connection = await Connection.open(settings, "127.0.0.1", us.nodes[0].port)
    try:
        opened = connection._transport.get_extra_info("socket")
        # Linux gives twice what it is asked for.
        assert opened.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 64_000
        assert opened.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == 96_000
    finally:
        await connection.close()


async def test_versions_are_negotiated(plain: Connection) -> None:
    request = MetadataRequest(topics=[])
    assert plain.version_of(request) == min(MetadataRequest.max_version, plain.versions[3][1])
    assert plain.version_of(request, at_most=5) == 5
    with pytest.raises(UnsupportedVersion, match=r"no common version of AddPartitionsToTxnRequest"):
        plain.version_of(AddPartitionsToTxnRequest, at_most=-1)


async def test_a_cut_fails_what_is_in_flight(proxy: FaultProxy) -> None:
    connection = await through(proxy)
    proxy.hold(Direction.ANSWERS)
    answers = [connection.send(3, 12, [METADATA_OF_NOTHING]) for _ in range(3)]
    await asyncio.to_thread(proxy.cut)
    for answer in answers:
        with pytest.raises(ConnectionLost, match=r"connection to 127\.0\.0\.1:\d+ lost"):
            await answer
    assert connection.closed
    with pytest.raises(ConnectionLost):
        await connection.send(3, 12, [METADATA_OF_NOTHING])
    await connection.close()


async def test_no_answer_in_time_closes_the_connection(proxy: FaultProxy) -> None:
    connection = await through(proxy)
    proxy.hold(Direction.ANSWERS)
    with pytest.raises(RequestTimedOut, match=r"did not answer MetadataRequest within 0\.05 s"):
        await connection.call(MetadataRequest(topics=[]), timeout_ms=50)
    assert connection.closed


async def test_writers_see_that_the_socket_takes_no_more(proxy: FaultProxy) -> None:
    connection = await through(proxy)
    proxy.stall(Direction.REQUESTS)
    answers = []
    while not connection.write_paused:
        answers.append(connection.send(3, 12, [METADATA_OF_NOTHING, bytes(100_000)]))
        await asyncio.sleep(0)
    await connection.close()
    outcomes = await asyncio.gather(*answers, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {ConnectionLost}


async def test_a_throttle_holds_the_next_call(plain: Connection) -> None:
    clock = asyncio.get_running_loop().time
    began_s = clock()
    plain.mute(60)
    plain.mute(20)
    await plain.call(MetadataRequest(topics=[]))
    assert clock() - began_s >= 0.06


async def test_nobody_listens() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(ClusterUnreachable, match=rf"127\.0\.0\.1:{port} is not reachable"):
            await Connection.open(settings_of(f"127.0.0.1:{port}"), "127.0.0.1", port)


async def test_a_port_that_never_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        settings = settings_of(f"127.0.0.1:{port}", request_timeout_ms="50")
        with pytest.raises(ClusterUnreachable, match=rf"127\.0\.0\.1:{port} did not answer within 0\.05 s"):
            await Connection.open(settings, "127.0.0.1", port)


async def test_metadata(us: KafkaCluster) -> None:
    topic = f"seen-{uuid4()}"
    await make_topics(us.bootstrap, {topic: 2})
    async with cluster_at(us.bootstrap) as cluster:
        found, missing, everything = await asyncio.gather(
            cluster.metadata({topic}), cluster.metadata({"nowhere"}), cluster.metadata(None)
        )
        node = next(iter(found.brokers))
        assert (found.brokers[node].host, found.brokers[node].port) == ("127.0.0.1", us.nodes[0].port)
        assert found.topics[topic].topic_id == everything.topics[topic].topic_id is not None
        assert [found.leader(topic, partition) for partition in range(3)] == [node, node, None]
        assert missing.topics["nowhere"].error_code == 3
        assert missing.leader("nowhere", 0) is None
        assert await cluster.connection(node) is await cluster.connection(node)
        assert await cluster.connection(node) is not await cluster.connection(node, "copy")
        with pytest.raises(ClusterUnreachable, match="has no broker 99"):
            await cluster.connection(99)
    with pytest.raises(RetriableError, match="its client was closed"):
        await cluster.metadata(())


async def test_a_cluster_goes_on_after_a_cut(proxy: FaultProxy) -> None:
    async with cluster_at("{}:{}".format(*proxy.address)) as cluster:
        await cluster.metadata(())
        await asyncio.to_thread(proxy.cut)
        assert (await cluster.metadata(())).brokers


async def test_it_waits_for_a_cluster_and_says_so(proxy: FaultProxy) -> None:
    await asyncio.to_thread(proxy.refuse)
    address, said = "{}:{}".format(*proxy.address), asyncio.Queue[Exception]()
    async with cluster_at(address) as cluster:
        waiting = asyncio.ensure_future(cluster.wait_reachable(said.put_nowait, every_s=0.01))
        assert f"{address} is not reachable" in str(await said.get())
        assert f"{address} is not reachable" in str(await said.get())
        await asyncio.to_thread(proxy.accept)
        await waiting
