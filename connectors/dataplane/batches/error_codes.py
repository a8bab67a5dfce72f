"""Classify Kafka's error codes (``Errors``) for the copy path, and explain which records a target refuses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kafka.errors import for_code

from connectors.formats.types import Skip, TopicPartition

#: An exception for which the broker has no code: it says neither whether the batch was appended nor whose fault it was.
UNKNOWN_SERVER_ERROR: Final = -1
#: Not a Kafka code: a record that could not be transformed never reached a broker.
NOT_TRANSFORMED: Final = -1000
OFFSET_OUT_OF_RANGE: Final = 1
CORRUPT_MESSAGE: Final = 2
UNKNOWN_TOPIC_OR_PARTITION: Final = 3
REQUEST_TIMED_OUT: Final = 7
MESSAGE_TOO_LARGE: Final = 10
INVALID_TOPIC: Final = 17
RECORD_LIST_TOO_LARGE: Final = 18
TOPIC_AUTHORIZATION_FAILED: Final = 29
CLUSTER_AUTHORIZATION_FAILED: Final = 31
INVALID_TIMESTAMP: Final = 32
POLICY_VIOLATION: Final = 44
OUT_OF_ORDER_SEQUENCE: Final = 45
INVALID_PRODUCER_EPOCH: Final = 47
CONCURRENT_TRANSACTIONS: Final = 51
FETCH_SESSION_ID_NOT_FOUND: Final = 70
INVALID_FETCH_SESSION_EPOCH: Final = 71
UNSUPPORTED_COMPRESSION: Final = 76
INVALID_RECORD: Final = 87
PRODUCER_FENCED: Final = 90
UNKNOWN_TOPIC_ID: Final = 100
FETCH_SESSION_TOPIC_ID_ERROR: Final = 106

SESSION_LOST: Final = frozenset({FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH, FETCH_SESSION_TOPIC_ID_ERROR})
#: A successor holds the transactional id: everything this slice sends is refused.
FENCED: Final = frozenset({INVALID_PRODUCER_EPOCH, PRODUCER_FENCED})
#: The open transaction is over, aborted or unknown: it can no longer be committed.
TRANSACTION_OVER: Final = frozenset({48, 49, 120})  # INVALID_TXN_STATE, INVALID_PRODUCER_ID_MAPPING, ..._ABORTABLE
#: Refused for their size: smaller batches may be accepted.
TOO_LARGE: Final = frozenset({MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE})
#: Refused because of some records: the others of the batch may be accepted.
OF_RECORDS: Final = TOO_LARGE | {INVALID_TIMESTAMP, INVALID_RECORD}
#: Answered before anything is appended (Kafka ``UnifiedLog.append``, ``Partition.appendRecordsToLeader``): that copy of
#: the batch will not be written. Other codes may also be answered after an append (Kafka ``DelayedProduce``).
NOT_WRITTEN: Final = OF_RECORDS | {
    CORRUPT_MESSAGE,
    19,  # NOT_ENOUGH_REPLICAS
    TOPIC_AUTHORIZATION_FAILED,
    OUT_OF_ORDER_SEQUENCE,
    CONCURRENT_TRANSACTIONS,
}
#: Too few replicas for ``acks=all``; REQUEST_TIMED_OUT and NOT_ENOUGH_REPLICAS_AFTER_APPEND come after the append.
LACKS_REPLICAS: Final = frozenset({REQUEST_TIMED_OUT, 19, 20})
#: Leadership moved or is unknown, or a broker starts or stops: look up the leader and retry.
RETRIABLE: Final = frozenset(
    {
        2,  # CORRUPT_MESSAGE: damaged between us and the broker; the batch is sent again unchanged
        3,  # UNKNOWN_TOPIC_OR_PARTITION: also while a broker does not know the topic yet
        5,  # LEADER_NOT_AVAILABLE
        6,  # NOT_LEADER_OR_FOLLOWER
        7,  # REQUEST_TIMED_OUT: appended, not acknowledged
        8,  # BROKER_NOT_AVAILABLE
        9,  # REPLICA_NOT_AVAILABLE
        13,  # NETWORK_EXCEPTION
        14,  # COORDINATOR_LOAD_IN_PROGRESS
        19,  # NOT_ENOUGH_REPLICAS
        20,  # NOT_ENOUGH_REPLICAS_AFTER_APPEND: appended, not acknowledged
        45,  # OUT_OF_ORDER_SEQUENCE_NUMBER: a batch before it was not written
        CONCURRENT_TRANSACTIONS,  # markers of the previous transaction are still being written
        56,  # KAFKA_STORAGE_ERROR
        74,  # FENCED_LEADER_EPOCH
        75,  # UNKNOWN_LEADER_EPOCH
        78,  # OFFSET_NOT_AVAILABLE
        89,  # THROTTLING_QUOTA_EXCEEDED
        100,  # UNKNOWN_TOPIC_ID: until metadata says whether the topic was recreated
        103,  # INCONSISTENT_TOPIC_ID
    }
)
#: Codes for which the library's name differs from Kafka's.
_NAMES: Final = {MESSAGE_TOO_LARGE: "MESSAGE_TOO_LARGE", UNKNOWN_SERVER_ERROR: "UNKNOWN_SERVER_ERROR"}


def code_name(code: int) -> str:
    """Return a code with its name in Kafka's documentation: ``NOT_ENOUGH_REPLICAS (19)``."""
    error = for_code(code)
    return f"{_NAMES.get(code) or getattr(error, 'message', error.__name__)} ({code})"


#: Advice for a connector's user; kafka-mirror-maker replaces these phrases with its own.
SKIP: Final = "or set errors.tolerance = all to leave out what is refused"
LEAVE_OUT: Final = "leave it out of topics"
AGAIN: Final = "then start the flow again"
#: Advice by code; ``{topic}`` is the target topic.
_ADVICE: Final = {
    MESSAGE_TOO_LARGE: f"raise max.message.bytes of topic {{topic}}, {SKIP}; {AGAIN}",
    RECORD_LIST_TOO_LARGE: f"raise segment.bytes of topic {{topic}}, {SKIP}; {AGAIN}",
    INVALID_TIMESTAMP: "raise message.timestamp.before.max.ms or message.timestamp.after.max.ms of topic "
    f"{{topic}}, {SKIP}; {AGAIN}",
    INVALID_RECORD: "a compacted topic takes no record without a key: change cleanup.policy of topic {topic}, "
    f"{SKIP}; {AGAIN}",
    TOPIC_AUTHORIZATION_FAILED: f"grant WRITE on topic {{topic}}, {AGAIN}",
    CLUSTER_AUTHORIZATION_FAILED: f"grant IDEMPOTENT_WRITE on the target cluster, {AGAIN}",
    UNKNOWN_TOPIC_ID: f"the topic was deleted: create {{topic}} again, {AGAIN}",
    INVALID_TOPIC: f"clients may not write to {{topic}}: {LEAVE_OUT}, {AGAIN}",
    UNSUPPORTED_COMPRESSION: f"the target does not know the codec: upgrade its brokers, {AGAIN}",
    POLICY_VIOLATION: f"a policy of the target forbids it: ask the operator of the cluster, {AGAIN}",
}
_ADVICE_ELSE: Final = f"see the log of the target's leader, {AGAIN}"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why the target will never accept a batch unchanged. ``records``: indexes that the answer lists, if any."""

    code: int
    records: tuple[int, ...] = ()
    message: str = ""

    @property
    def is_for_size(self) -> bool:
        return self.code in TOO_LARGE


def add_skip(skips: list[Skip], offset: int, code: int) -> None:
    """Append one record, merged with the last skip if it follows directly."""
    if skips and skips[-1][1] + 1 == offset and skips[-1][2] == code:
        skips[-1] = (skips[-1][0], offset, code)
    else:
        skips.append((offset, offset, code))


def explained(code: int, target: TopicPartition, what: str, message: str = "") -> str:
    """Return the reason of a quarantined partition: what is refused, the broker's code and message, what to do."""
    said = f" ({message})" if message else ""
    advice = _ADVICE.get(code, _ADVICE_ELSE).format(topic=target.topic)
    return f"target {target} refuses {what}: {code_name(code)}{said}; {advice}"


def unread(topic: str, code: int) -> str:
    """Return ``cannot be read: CODE``, and which right to grant if one is missing."""
    grant = f"; grant READ on topic {topic}" if code == TOPIC_AUTHORIZATION_FAILED else ""
    return f"cannot be read: {code_name(code)}{grant}"
