"""What a target refuses for good: which records, by which code, and what to do about it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from connectors.dataplane import codes
from connectors.dataplane.plan import Skip, TopicPartition

#: Words of what a connector's user does; another command has its own in their place.
SKIP: Final = "or set errors.tolerance = all to leave out what is refused"
LEAVE_OUT: Final = "leave it out of topics"
AGAIN: Final = "then start the flow again"
#: What to do, by code; ``{topic}`` is the target's.
_ADVICE: Final = {
    codes.MESSAGE_TOO_LARGE: f"raise max.message.bytes of topic {{topic}}, {SKIP}; {AGAIN}",
    codes.RECORD_LIST_TOO_LARGE: f"raise segment.bytes of topic {{topic}}, {SKIP}; {AGAIN}",
    codes.INVALID_TIMESTAMP: "raise message.timestamp.before.max.ms or message.timestamp.after.max.ms of topic "
    f"{{topic}}, {SKIP}; {AGAIN}",
    codes.INVALID_RECORD: "a compacted topic takes no record without a key: change cleanup.policy of topic {topic}, "
    f"{SKIP}; {AGAIN}",
    codes.TOPIC_AUTHORIZATION_FAILED: f"grant WRITE on topic {{topic}}, {AGAIN}",
    codes.CLUSTER_AUTHORIZATION_FAILED: f"grant IDEMPOTENT_WRITE on the target cluster, {AGAIN}",
    codes.UNKNOWN_TOPIC_ID: f"the topic was deleted: make {{topic}} again, {AGAIN}",
    codes.INVALID_TOPIC: f"the target lets nobody write to {{topic}}: {LEAVE_OUT}, {AGAIN}",
    codes.UNSUPPORTED_COMPRESSION: f"the target does not know the codec: upgrade its brokers, {AGAIN}",
    codes.POLICY_VIOLATION: f"a policy of the target forbids it: ask who runs the cluster, {AGAIN}",
}
_ADVICE_ELSE: Final = f"see the log of the target's leader, {AGAIN}"


@dataclass(frozen=True, slots=True)
class Refusal:
    """A batch that the target will never take as it is.

    ``records``: indexes in the batch that the answer lists, empty where it lists none. ``message``: the broker's own.
    """

    code: int
    records: tuple[int, ...] = ()
    message: str = ""

    @property
    def is_for_size(self) -> bool:
        """Whether smaller batches may be taken."""
        return self.code in codes.TOO_LARGE


def add_skip(skips: list[Skip], offset: int, code: int) -> None:
    """Append one record, merging with the last skip where it follows it."""
    if skips and skips[-1][1] + 1 == offset and skips[-1][2] == code:
        skips[-1] = (skips[-1][0], offset, code)
    else:
        skips.append((offset, offset, code))


def explained(code: int, target: TopicPartition, what: str, message: str = "") -> str:
    """The sentence of a quarantined partition: what is refused, the broker's code and words, what to do."""
    said = f" ({message})" if message else ""
    advice = _ADVICE.get(code, _ADVICE_ELSE).format(topic=target.topic)
    return f"target {target} refuses {what}: {codes.name(code)}{said}; {advice}"


def unread(topic: str, code: int) -> str:
    """``cannot be read: CODE``, and what to do where somebody can do something."""
    grant = f"; grant READ on topic {topic}" if code == codes.TOPIC_AUTHORIZATION_FAILED else ""
    return f"cannot be read: {codes.name(code)}{grant}"
