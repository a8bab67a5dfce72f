"""The bytes of a recorded access rule."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connect.kafka.authorization import OPERATIONS, PATTERN_TYPES, PERMISSIONS, RESOURCE_TYPES, AclBinding
from connectors.formats.position import KeyKind, UnknownFormat, decode_kind
from connectors.topic_sync.acl_sync import ACLS

RULE = AclBinding("TOPIC", "us.o", "PREFIXED", "User:bob", "*", "READ", "DENY")
BYTES = b"\x01\x05\x02\x04\x03\x02\x00\x01C\x00\x04us.o\x00\x08User:bob\x00\x01*"


def test_the_bytes() -> None:
    assert ACLS.encode_key("C", RULE) == BYTES
    assert decode_kind(BYTES) is KeyKind.ACL


@pytest.mark.parametrize("raw", [BYTES[:-1], BYTES + b"x", BYTES[:5]])
def test_what_is_cut_or_too_long_is_refused(raw: bytes) -> None:
    with pytest.raises(UnknownFormat):
        ACLS.decode_key(raw)


def of(words: dict[int, str]) -> st.SearchStrategy[str]:
    return st.sampled_from(sorted(words.values()))


@given(
    st.tuples(
        st.text(max_size=9),
        st.builds(
            AclBinding,
            of(RESOURCE_TYPES),
            st.text(max_size=9),
            of(PATTERN_TYPES),
            st.text(max_size=9),
            st.text(max_size=9),
            of(OPERATIONS),
            of(PERMISSIONS),
        ),
    )
)
def test_there_and_back(key: tuple[str, AclBinding]) -> None:
    assert ACLS.decode_key(ACLS.encode_key(*key)) == key
