"""The settings of a flow that masks, drops and diverts records by ``transform.sql`` and transforms."""

from __future__ import annotations

from typing import Final

QUERY: Final = (
    "SELECT key, IF(topic LIKE '%-numbers', CAST(CAST(CAST(value AS STRING) AS INT) + 1 AS STRING), "
    "regexp_replace(value, '[0-9]{16}', '****')) AS value, "
    "IF(topic LIKE '%-orders' AND pmod(offset, 5) = 4, concat(topic, '.fifth'), NULL) AS topic FROM records "
    "WHERE topic NOT LIKE '%.test' AND coalesce(value <> 'drop me', true)"
)


def masking(alias: str, other: str, target: str) -> dict[str, str]:
    """Settings of the flow from ``alias``, and of the one from ``other`` that copies what the query sends elsewhere."""
    flow, diverted = f"{alias}->{target}", f"{other}->{target}"
    return {
        f"{flow}.enabled": "true",
        f"{flow}.topics": f"{alias}-orders, {alias}-orders\\\\.test, {alias}-numbers",
        f"{flow}.transform.sql": QUERY,
        f"{flow}.transforms": "sift, short, lean",
        f"{flow}.transforms.sift.type": "Filter",
        f"{flow}.transforms.sift.predicate": "spam",
        f"{flow}.transforms.short.type": "RegexRouter",
        f"{flow}.transforms.short.regex": "(.*)-numbers",
        f"{flow}.transforms.short.replacement": "$1-figures",
        f"{flow}.transforms.lean.type": "org.apache.kafka.connect.transforms.DropHeaders",
        f"{flow}.transforms.lean.headers": "secret",
        f"{flow}.predicates": "spam",
        f"{flow}.predicates.spam.type": "HasHeaderKey",
        f"{flow}.predicates.spam.name": "spam",
        f"{flow}.transform.other.topics": "${topic}.fifth",
        f"{diverted}.enabled": "true",
        f"{diverted}.topics": f"{alias}-orders",
        f"{diverted}.transform.sql": QUERY,
        f"{diverted}.transform.topic": "${topic}.fifth",
        f"{diverted}.transform.other.topics": "${topic}",
    }
