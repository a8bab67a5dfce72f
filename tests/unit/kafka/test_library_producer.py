"""The library's producer where we use its inside: fails when an upgrade changes that."""

from __future__ import annotations

import aiokafka.errors
from aiokafka import TopicPartition

from connect.kafka.library_producer import BuiltBatch, InvalidRecord, cut_off, make_producer
from connect.kafka.settings import connection_settings

SETTINGS = connection_settings({"bootstrap.servers": "b:9092"}, client_id="c", where="test")


def built(*producer: int) -> bytes:
    return b"%d %d %d" % producer


async def test_a_batch_of_ours_gets_its_place_in_the_sequence_once() -> None:
    producer = make_producer(SETTINGS, float("inf"), enable_idempotence=True)
    assert producer._txn_manager is not None
    producer._txn_manager.set_pid_and_epoch(7, 1)
    queue, partition = producer._message_accumulator, TopicPartition("t", 0)
    for expected in (b"7 1 0", b"7 1 5"):
        answer = await queue.add_batch(BuiltBatch(5, built, lambda: None), partition, 1.0)
        sent = queue._pop_batch(partition)
        assert bytes(sent.get_data_buffer()) == expected
        queue.reenqueue(sent)
        again = queue._pop_batch(partition)
        assert bytes(again.get_data_buffer()) == expected, "what is sent again is unchanged"
        assert not again.expired()
        again.done(0)
        await answer
    await cut_off(producer)


def test_the_library_tells_records_that_are_refused_from_unknown_errors() -> None:
    assert aiokafka.errors.for_code(87) is InvalidRecord
    assert aiokafka.errors.for_code(9_999) is aiokafka.errors.UnknownError
