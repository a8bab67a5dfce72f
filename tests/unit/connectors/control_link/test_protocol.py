"""Messages on the control link: none is too long for it."""

import asyncio
from contextlib import suppress
from typing import Any, cast

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.control_link.protocol import MAX_ENTRIES, MAX_FRAME_BYTES, Link, LinkClosed, pieces


class Writer:
    """Hands what is written to the other side's reader, and notes the frames."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self.frame_bytes: list[int] = []
        self._reader = reader

    def is_closing(self) -> bool:
        return False

    def writelines(self, parts: tuple[bytes, bytes]) -> None:
        self.frame_bytes.append(len(parts[1]))
        self._reader.feed_data(b"".join(parts))


def link() -> tuple[Link, Writer, asyncio.StreamReader]:
    reader = asyncio.StreamReader(limit=1 << 30)
    writer = Writer(reader)
    return Link(reader, cast(Any, writer)), writer, reader


@pytest.mark.parametrize(
    "message",
    [
        {"type": "done", "unclean": [["a" * 249, index] for index in range(10_000)]},
        {"type": "resumed", "runs": [[index * 2**33, index * 2**32, 1] for index in range(500_000)]},
        {"type": "log", "text": "a" * (MAX_FRAME_BYTES - len(orjson.dumps({"type": "log", "text": ""})))},
        {"type": "alive"},
    ],
    ids=["long names", "many runs", "exactly one frame", "short"],
)
async def test_a_message_of_any_length_passes_in_frames_of_bounded_length(message: dict[str, Any]) -> None:
    both, writer, _ = link()
    both.send(message)
    both.send({"type": "next"})
    assert await both.receive() == message
    assert await both.receive() == {"type": "next"}
    assert max(writer.frame_bytes) <= MAX_FRAME_BYTES
    assert len(writer.frame_bytes) == 1 + -(-len(orjson.dumps(message)) // MAX_FRAME_BYTES)


async def test_a_peer_that_has_not_proven_itself_may_not_send_long_messages() -> None:
    both, _, _ = link()
    both.send({"type": "hello", "token": "a" * 2 * MAX_FRAME_BYTES})
    with pytest.raises(LinkClosed, match="over the limit"):
        await both.receive(64 * 1024)


async def test_a_frame_over_the_bound_closes_the_link() -> None:
    both, _, reader = link()
    reader.feed_data((MAX_FRAME_BYTES + 1).to_bytes(4))
    with pytest.raises(LinkClosed, match="over the limit"):
        await both.receive()


FRAMES = st.binary(max_size=20) | st.sampled_from([b"[" * 60_000, b'{"a":' * 9000, b'{"type":"\\ud800"}', b"9" * 5000])


@given(frames=st.lists(st.tuples(FRAMES, st.booleans(), st.integers(-2, 2)), max_size=4), front=st.binary(max_size=6))
def test_any_frames_are_a_message_or_close_the_link(frames: list[tuple[bytes, bool, int]], front: bytes) -> None:
    async def received() -> None:
        both, _, reader = link()
        reader.feed_data(front)
        for data, continues, wrong in frames:
            length = max(0, len(data) + wrong) | (1 << 31 if continues else 0)
            reader.feed_data(length.to_bytes(4) + data)
        reader.feed_eof()
        with suppress(LinkClosed):
            while True:
                assert isinstance(await both.receive(64 * 1024), dict)

    asyncio.run(received())


def test_lists_are_split_by_what_their_entries_count() -> None:
    assert [len(piece) for piece in pieces(range(2 * MAX_ENTRIES + 1))] == [MAX_ENTRIES, MAX_ENTRIES, 1]
    assert list(pieces([])) == []
