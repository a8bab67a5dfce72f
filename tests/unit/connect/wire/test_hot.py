"""The hand-cut messages against the library's codec, for random values."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.consumer.fetch import FetchResponse
from kafka.protocol.producer.produce import ProduceRequest, ProduceResponse

from connect.wire import fetch_produce

int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
int16 = st.integers(-(2**15), 2**15 - 1)
names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=60)
topic_ids = st.uuids()
texts = st.none() | st.text(max_size=200)


@st.composite
def topics(draw, partition):
    return draw(st.lists(st.tuples(names, topic_ids, st.lists(partition, max_size=3)), max_size=3))


@given(st.integers(9, 13), int32, topics(st.tuples(int32, st.binary(max_size=100))))
def test_produce_request_is_what_the_library_writes(version, timeout_ms, data):
    data = [(name, topic_id, parts) for name, topic_id, parts in data if parts]
    keyed = [
        (
            topic_id.bytes if version >= 13 else fetch_produce.topic_name_key(name),
            [(i, memoryview(b)) for i, b in parts],
        )
        for name, topic_id, parts in data
    ]
    topic_data = [
        ProduceRequest.TopicProduceData(
            name=name,
            topic_id=topic_id,
            partition_data=[ProduceRequest.TopicProduceData.PartitionProduceData(index=i, records=b) for i, b in parts],
        )
        for name, topic_id, parts in data
    ]
    expected = ProduceRequest(transactional_id=None, acks=-1, timeout_ms=timeout_ms, topic_data=topic_data)
    assert b"".join(fetch_produce.encode_produce(timeout_ms, keyed)) == bytes(expected.encode(version=version))


@given(
    st.integers(9, 13),
    int32,
    topics(
        st.tuples(
            int32,
            int16,
            st.tuples(int64, int64, int64),
            st.lists(st.tuples(int32, texts), max_size=2),
            texts,
            st.none() | st.tuples(int32, int32),
        )
    ),
)
def test_produce_answer_is_read_as_the_library_reads_it(version, throttle, data):
    partition = ProduceResponse.TopicProduceResponse.PartitionProduceResponse
    responses = []
    for name, topic_id, parts in data:
        rows = []
        for index, error, (base, appended, start), errors, message, leader in parts:
            row = partition(
                index=index,
                error_code=error,
                base_offset=base,
                log_append_time_ms=appended,
                log_start_offset=start,
                record_errors=[
                    partition.BatchIndexAndErrorMessage(batch_index=i, batch_index_error_message=m) for i, m in errors
                ],
                error_message=message,
            )
            if leader and version >= 10:
                row.current_leader = partition.LeaderIdAndEpoch(leader_id=leader[0], leader_epoch=leader[1])
            rows.append(row)
        responses.append(ProduceResponse.TopicProduceResponse(name=name, topic_id=topic_id, partition_responses=rows))
    body = bytes(ProduceResponse(responses=responses, throttle_time_ms=throttle).encode(version=version))
    answer = fetch_produce.decode_produce(memoryview(body), version)
    assert answer.throttle_time_ms == throttle
    flat = [(name, topic_id, p) for name, topic_id, parts in data for p in parts]
    assert len(flat) == len(answer.partitions)
    for (name, topic_id, (index, error, offsets, errors, message, leader)), got in zip(
        flat, answer.partitions, strict=True
    ):
        assert got.topic == (topic_id.bytes if version >= 13 else fetch_produce.topic_name_key(name))
        assert (got.partition, got.error_code) == (index, error)
        assert (got.base_offset, got.log_append_time_ms, got.log_start_offset) == offsets
        assert (got.message, got.record_errors) == (message, tuple(errors))
        if leader and version >= 10 and leader != (-1, -1):
            assert got.leader == leader


@st.composite
def fetched_partitions(draw):
    return (
        draw(int32),
        draw(int16),
        draw(st.tuples(int64, int64, int64)),
        draw(st.none() | st.lists(st.tuples(int64, int64), max_size=3)),
        draw(int32),
        draw(st.none() | st.binary(max_size=300)),
        draw(st.none() | st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1))),
    )


@given(st.integers(12, 18), int32, int16, int32, topics(fetched_partitions()))
def test_fetch_answer_is_read_as_the_library_reads_it(version, throttle, error_code, session, data):
    partition = FetchResponse.FetchableTopicResponse.PartitionData
    responses = []
    for name, topic_id, parts in data:
        rows = []
        for index, error, (high, stable, start), aborted, replica, records, diverging in parts:
            row = partition(
                partition_index=index,
                error_code=error,
                high_watermark=high,
                last_stable_offset=stable,
                log_start_offset=start,
                aborted_transactions=None
                if aborted is None
                else [partition.AbortedTransaction(producer_id=p, first_offset=o) for p, o in aborted],
                preferred_read_replica=replica,
                records=records,
            )
            if diverging:
                row.diverging_epoch = partition.EpochEndOffset(epoch=diverging[0], end_offset=diverging[1])
            rows.append(row)
        responses.append(FetchResponse.FetchableTopicResponse(topic=name, topic_id=topic_id, partitions=rows))
    message = FetchResponse(throttle_time_ms=throttle, error_code=error_code, session_id=session, responses=responses)
    answer = fetch_produce.decode_fetch(memoryview(bytes(message.encode(version=version))), version)
    assert (answer.throttle_time_ms, answer.error_code, answer.session_id) == (throttle, error_code, session)
    flat = [(name, topic_id, p) for name, topic_id, parts in data for p in parts]
    for (name, topic_id, p), got in zip(flat, answer.partitions, strict=True):
        index, error, offsets, aborted, replica, records, diverging = p
        assert got.topic == (topic_id.bytes if version >= 13 else fetch_produce.topic_name_key(name))
        assert (got.partition, got.error_code) == (index, error)
        assert (got.high_watermark, got.last_stable_offset, got.log_start_offset) == offsets
        assert got.aborted == tuple(aborted or ())
        assert got.preferred_read_replica == replica
        assert bytes(got.records) == (records or b"")
        assert got.diverging == diverging
