"""What compressed messages of magic 0 and 1 hold. The header checksum of lz4 frames of magic 0 covers the frame's magic
number too, and so it is wrong.

Kafka wrote them so until 0.10 (KAFKA-3160) and reads them to this day without looking at that checksum. Libraries
look, so it is put right before.
"""

from __future__ import annotations

import struct
from typing import Final

from connect.wire import batch as wire
from connect.wire.opening import opened_payload

LZ4: Final = 3
_ATTRIBUTES_AT: Final = 17
#: By magic; a timestamp stands before it in magic 1.
_KEY_AT: Final = (18, 26)
_LENGTH: Final = struct.Struct(">i")
_MAGIC_BYTES: Final = 4
_DESCRIPTOR_BYTES: Final = 2
_CONTENT_SIZE: Final = 0x08
_CONTENT_SIZE_BYTES: Final = 8
_MASK: Final = 0xFFFFFFFF
_PRIMES: Final = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F, 0x165667B1)


def codec_of(message: bytes) -> int:
    """The number of a message's codec, 0 for none."""
    return message[_ATTRIBUTES_AT] & wire.CODEC_MASK


def messages_inside(wrapper: bytes, magic: int) -> wire.Buffer:
    """The messages in a compressed message of magic 0 or 1, one behind the other; none in another. Raises TooLarge."""
    codec = codec_of(wrapper)
    if not codec:
        return b""
    key_length = _LENGTH.unpack_from(wrapper, _KEY_AT[magic])[0]
    value_at = _KEY_AT[magic] + _LENGTH.size + max(key_length, 0)
    length = _LENGTH.unpack_from(wrapper, value_at)[0]
    payload = bytearray(wrapper[value_at + _LENGTH.size : value_at + _LENGTH.size + length])
    if magic == 0 and codec == LZ4:
        end = _MAGIC_BYTES + _DESCRIPTOR_BYTES + (_CONTENT_SIZE_BYTES if payload[_MAGIC_BYTES] & _CONTENT_SIZE else 0)
        payload[end] = header_checksum(payload[_MAGIC_BYTES:end])
    return opened_payload(bytes(payload), codec)


def header_checksum(descriptor: bytes | bytearray) -> int:
    """The second byte of the descriptor's xxHash32, for the fewer than 16 bytes that a descriptor has."""
    first, second, third, fourth, fifth = _PRIMES
    value, at = fifth + len(descriptor), 0
    while at + 4 <= len(descriptor):
        lane = int.from_bytes(descriptor[at : at + 4], "little")
        value = _rotated(value + lane * third, 17) * fourth & _MASK
        at += 4
    for byte in descriptor[at:]:
        value = _rotated(value + byte * fifth, 11) * first & _MASK
    value = (value ^ value >> 15) * second & _MASK
    value = (value ^ value >> 13) * third & _MASK
    return (value ^ value >> 16) >> 8 & 0xFF


def _rotated(value: int, bits: int) -> int:
    value &= _MASK
    return (value << bits | value >> 32 - bits) & _MASK
