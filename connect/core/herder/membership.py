"""Encodes and decodes the group protocol of Connect: metadata of joining members, assignments of the leader.

Big endian; STRING is int16 length and UTF-8, ARRAY int32 count, NULLABLE_BYTES int32 length with -1 for null::

    metadata    version INT16, url STRING, config offset INT64 [, allocation NULLABLE_BYTES]
    assignment  version INT16, error INT16, leader STRING, leader url STRING, config offset INT64,
                assigned WORK [, revoked WORK, delay INT32]
    WORK        ARRAY of (connector STRING, tasks ARRAY of INT32), task -1 for the connector itself

Version 0 has no fields in brackets; 1 and 2 are equal (Kafka ``ConnectProtocol``,
``IncrementalCooperativeConnectProtocol``). Missing fields at the end are null, or no delay.

This worker appends a tail to its metadata, in version 0 after an allocation, which Java ignores: magic ``HGLE``, tail
version INT16, lease in ms INT32. Later tail versions may append fields.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from connect.core.errors import PermanentError
from connect.core.model import TaskId

#: The names of the protocols on the wire; ``default`` is the eager one.
EAGER: Final = "default"
COMPATIBLE: Final = "compatible"
SESSIONED: Final = "sessioned"
VERSIONS: Final = {EAGER: 0, COMPATIBLE: 1, SESSIONED: 2}

NO_ERROR: Final = 0
#: The leader could not read the config topic as far as another member has.
CONFIG_MISMATCH: Final = 1

#: The maximum length of a name or a URL in UTF-8.
MAX_STRING_BYTES: Final = 2**15 - 1

_CONNECTOR: Final = -1
_TAIL_MAGIC: Final = b"HGLE"
_TAIL_VERSION: Final = 1
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")
_TAIL: Final = struct.Struct(">hi")


class MalformedMembership(PermanentError):
    """The metadata or assignment of another member is malformed, or a name is too long for the protocol."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """The connectors and tasks of a member."""

    connectors: tuple[str, ...] = ()
    tasks: tuple[TaskId, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.connectors or self.tasks)


NOTHING: Final = Allocation()


@dataclass(frozen=True, slots=True)
class WorkerMetadata:
    """The metadata of a joining member. ``url`` ends with a slash. ``config_offset`` is the one after the last record
    that the member has read of the config topic, -1 for none. ``allocation`` is all its work, None before its first
    assignment. ``lease_ms``: from its last answered heartbeat until it has stopped its work; None for a Java member."""

    url: str
    config_offset: int
    allocation: Allocation | None = None
    lease_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Assignment:
    """The leader's assignment for a member; with the eager protocol there are no revocations and no delay. ``delay_ms``
    above 0: rejoin after this delay. ``version`` is the version of the decoded bytes."""

    error: int
    leader: str
    leader_url: str
    config_offset: int
    assigned: Allocation = NOTHING
    revoked: Allocation = NOTHING
    delay_ms: int = 0
    version: int = VERSIONS[SESSIONED]


def encode_metadata(protocol: str, metadata: WorkerMetadata) -> bytes:
    """Encode the metadata for ``protocol``. Raises MalformedMembership if a text is longer than 32767 bytes."""
    version = VERSIONS[protocol]
    out = bytearray(_INT16.pack(version))
    _put_string(out, metadata.url)
    out += _INT64.pack(metadata.config_offset)
    # With the eager protocol only a group that leaves a cooperative protocol has allocations, which tell the leader
    # that members still work. Java decodes and ignores them.
    if not version and not metadata.allocation and metadata.lease_ms is None:
        return bytes(out)
    if metadata.allocation is None or not (version or metadata.allocation):
        out += _INT32.pack(-1)
    else:
        # Leaders read only the work, so the other fields need no real values.
        held = Assignment(NO_ERROR, "", metadata.url, metadata.config_offset, metadata.allocation)
        encoded = encode_assignment(protocol, held)
        out += _INT32.pack(len(encoded)) + encoded
    if metadata.lease_ms is not None:
        out += _TAIL_MAGIC + _TAIL.pack(_TAIL_VERSION, metadata.lease_ms)
    return bytes(out)


def held_by(members: Mapping[str, bytes]) -> set[str]:
    """Return the connectors that members hold, or of which they hold tasks, by the metadata of all members."""
    held: set[str] = set()
    for data in members.values():
        try:
            allocation = decode_metadata(data).allocation or NOTHING
        except MalformedMembership:
            continue  # because it gets no work; the assignment logs it
        held.update(allocation.connectors, (task.connector for task in allocation.tasks))
    return held


def work_held(metadata: bytes, assignment: bytes) -> Allocation:
    """Return the work of a member of a stable group: what it held when it joined and what the leader gave it then,
    without what was revoked. Raises MalformedMembership if the bytes are not those of a Connect worker."""
    held = decode_metadata(metadata).allocation or NOTHING
    new = decode_assignment(assignment)
    return Allocation(
        tuple(sorted({*held.connectors, *new.assigned.connectors} - {*new.revoked.connectors})),
        tuple(sorted({*held.tasks, *new.assigned.tasks} - {*new.revoked.tasks})),
    )


def decode_metadata(data: bytes) -> WorkerMetadata:
    """Decode the metadata of a Java or Python member. Raises MalformedMembership if the bytes are not metadata."""
    reader = _MetadataReader(data)
    reader.version()
    url, config_offset = reader.string(), reader.number(_INT64)
    allocation: Allocation | None = None
    if reader.has_more() and (held := reader.nullable_bytes()) is not None:
        allocation = decode_assignment(held).assigned
    return WorkerMetadata(url, config_offset, allocation, reader.lease_ms())


def encode_assignment(protocol: str, assignment: Assignment) -> bytes:
    """Encode an assignment for a group with ``protocol``. Raises MalformedMembership if a name is longer than 32767
    bytes."""
    version = VERSIONS[protocol]
    out = bytearray(_INT16.pack(version) + _INT16.pack(assignment.error))
    _put_string(out, assignment.leader)
    _put_string(out, assignment.leader_url)
    out += _INT64.pack(assignment.config_offset)
    _put_work(out, assignment.assigned)
    if version:
        _put_work(out, assignment.revoked)
        out += _INT32.pack(assignment.delay_ms)
    return bytes(out)


def decode_assignment(data: bytes) -> Assignment:
    """Decode the assignment of a Java or Python leader. Raises MalformedMembership if the bytes are not an
    assignment."""
    reader = _MetadataReader(data)
    version, error = reader.version(), reader.number(_INT16)
    leader, leader_url = reader.string(), reader.string()
    config_offset = reader.number(_INT64)
    assigned = reader.work() if reader.has_more() else NOTHING
    revoked = reader.work() if reader.has_more() else NOTHING
    delay_ms = reader.number(_INT32) if reader.has_more() else 0
    return Assignment(error, leader, leader_url, config_offset, assigned, revoked, delay_ms, version)


def fits(name: str) -> bool:
    """Return whether the group protocol can encode a name; the config topic has no such limit."""
    try:
        return len(name.encode()) <= MAX_STRING_BYTES
    except UnicodeEncodeError:
        return False


def _put_string(out: bytearray, value: str) -> None:
    encoded = value.encode()
    if len(encoded) > MAX_STRING_BYTES:
        raise MalformedMembership(
            f"a name of {len(encoded)} bytes ({value[:40]}...) is too long for Connect's group protocol, which allows "
            f"{MAX_STRING_BYTES}. Delete the connector, and create it again with a shorter name"
        )
    out += _INT16.pack(len(encoded)) + encoded


def _put_work(out: bytearray, work: Allocation) -> None:
    grouped: dict[str, list[int]] = {name: [_CONNECTOR] for name in work.connectors}
    for task in work.tasks:
        grouped.setdefault(task.connector, []).append(task.task)
    out += _INT32.pack(len(grouped))
    for name, numbers in grouped.items():
        _put_string(out, name)
        out += struct.pack(f">i{len(numbers)}i", len(numbers), *numbers)


class _MetadataReader:
    """A reader of fields. Raises MalformedMembership if the bytes do not match."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def has_more(self) -> bool:
        return self._at < len(self._data)

    def version(self) -> int:
        """Read the version. As in Java's ``checkVersionCompatibility``, later versions must begin like these."""
        version = self.number(_INT16)
        if version < 0:
            raise MalformedMembership(f"group protocol of a member has the invalid version {version}")
        return version

    def int32s(self) -> tuple[int, ...]:
        count = max(self.number(_INT32), 0)
        return struct.unpack(f">{count}i", self._take(count * _INT32.size))

    def string(self) -> str:
        try:
            return self._take(self.number(_INT16)).decode()
        except UnicodeDecodeError as error:
            raise MalformedMembership(f"a text in the group protocol of a member is not UTF-8: {error}") from error

    def nullable_bytes(self) -> bytes | None:
        length = self.number(_INT32)
        return None if length < 0 else self._take(length)

    def work(self) -> Allocation:
        connectors: list[str] = []
        tasks: list[TaskId] = []
        for _ in range(self.number(_INT32)):  # -1, for null, is an empty range
            connector = self.string()
            numbers = self.int32s()
            if _CONNECTOR in numbers:
                connectors.append(connector)
            tasks += [TaskId(connector, number) for number in numbers if number != _CONNECTOR]
        return Allocation(tuple(connectors), tuple(tasks))

    def lease_ms(self) -> int | None:
        """Read the tail of a Python member; later fields are ignored."""
        rest = self._data[self._at :]
        if not rest.startswith(_TAIL_MAGIC) or len(rest) < len(_TAIL_MAGIC) + _TAIL.size:
            return None
        version, lease_ms = _TAIL.unpack_from(rest, len(_TAIL_MAGIC))
        return int(lease_ms) if version >= _TAIL_VERSION else None

    def number(self, form: struct.Struct) -> int:
        number: int
        try:
            (number,) = form.unpack_from(self._data, self._at)
        except struct.error:
            raise self._cut_off() from None
        self._at += form.size
        return number

    def _take(self, length: int) -> bytes:
        taken = self._data[self._at : self._at + length]
        if length < 0 or len(taken) < length:
            raise self._cut_off()
        self._at += length
        return taken

    def _cut_off(self) -> MalformedMembership:
        return MalformedMembership(
            f"group protocol of a member: {len(self._data)} bytes end in the middle of a field; the member is not a "
            "Connect worker, or another group has the same group.id"
        )
