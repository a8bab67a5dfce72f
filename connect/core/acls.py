"""Rules of an authorizer in Kafka's words, and the words' codes on the wire (Kafka ``AclBinding`` and its kin)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

RESOURCE_TYPES: Final = {
    2: "TOPIC",
    3: "GROUP",
    4: "CLUSTER",
    5: "TRANSACTIONAL_ID",
    6: "DELEGATION_TOKEN",
    7: "USER",
}
PATTERN_TYPES: Final = {3: "LITERAL", 4: "PREFIXED"}
OPERATIONS: Final = {
    2: "ALL",
    3: "READ",
    4: "WRITE",
    5: "CREATE",
    6: "DELETE",
    7: "ALTER",
    8: "DESCRIBE",
    9: "CLUSTER_ACTION",
    10: "DESCRIBE_CONFIGS",
    11: "ALTER_CONFIGS",
    12: "IDEMPOTENT_WRITE",
    13: "CREATE_TOKENS",
    14: "DESCRIBE_TOKENS",
}
PERMISSIONS: Final = {2: "DENY", 3: "ALLOW"}
#: In a filter, and never in a rule.
ANY: Final = 1
#: The literal name that stands for every name.
WILDCARD: Final = "*"
#: The principal that stands for every user.
EVERYBODY: Final = "User:*"
_UNNAMED: Final = "CODE_"


@dataclass(frozen=True, slots=True, order=True)
class AclBinding:
    """One rule of an authorizer.

    ``resource_type`` TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID, DELEGATION_TOKEN or USER, ``pattern_type`` LITERAL or
    PREFIXED, ``permission`` ALLOW or DENY. What a newer broker has beyond these words is called ``CODE_`` and its
    number.
    """

    resource_type: str
    resource_name: str
    pattern_type: str
    principal: str
    host: str
    operation: str
    permission: str

    @property
    def is_deny(self) -> bool:
        return self.permission != "ALLOW"

    def is_of_topic(self, topic: str) -> bool:
        """Whether an authorizer counts it among the rules of a topic."""
        if self.resource_type != "TOPIC":
            return False
        if self.pattern_type == "PREFIXED":
            return topic.startswith(self.resource_name)
        return self.resource_name in (topic, WILDCARD)

    def __str__(self) -> str:
        return (
            f"{self.permission} {self.operation} to {self.principal} from {self.host} "
            f"on {self.pattern_type} {self.resource_type} {self.resource_name}"
        )


def refusal_of_writers(topic: str) -> AclBinding:
    """The rule by which a failover has the old primary refuse whoever writes to ``topic``; super users write all the
    same."""
    return AclBinding("TOPIC", topic, "LITERAL", EVERYBODY, WILDCARD, "WRITE", "DENY")


def refuses_writers(rule: AclBinding) -> bool:
    """Whether a rule is of the form of :func:`refusal_of_writers`; no topic is called ``*``."""
    return rule.resource_name != WILDCARD and rule == refusal_of_writers(rule.resource_name)


def word(words: Mapping[int, str], code: int) -> str:
    """The word for a code of the wire."""
    return words.get(code, f"{_UNNAMED}{code}")


def code(words: Mapping[int, str], name: str) -> int | None:
    """The code for a word; None where it has none that this version knows."""
    return next((number for number, known in words.items() if known == name), None)
