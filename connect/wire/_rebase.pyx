# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The functions of ``rebase.py``, compiled. See there for arguments, results and errors."""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memset

from crc32c import crc32c as _checksum

cdef extern from "Python.h":
    object PyMemoryView_FromMemory(char* start, Py_ssize_t size, int flags)
    enum:
        PyBUF_READ

cdef enum:
    HEADER_BYTES = 61
    LOG_OVERHEAD_BYTES = 12
    # Length, attributes and both deltas of a record: 5 + 1 + 10 + 5.
    PREFIX_BYTES = 21
    MORE_BYTES = 8

VERSION = 5

cdef int64_t NEVER = -(2**63)
cdef int64_t MOST_SHIFT_MS = 2**61


cdef inline uint32_t u32(const uint8_t* p) noexcept nogil:
    return (<uint32_t>p[0] << 24) | (<uint32_t>p[1] << 16) | (<uint32_t>p[2] << 8) | p[3]


cdef inline int64_t i64(const uint8_t* p) noexcept nogil:
    return <int64_t>((<uint64_t>u32(p) << 32) | u32(p + 4))


cdef inline int64_t less(int64_t one, int64_t other) noexcept nogil:
    """Return the difference, wrapped at 64 bits: an overflow gives a value too far apart, or the same number."""
    return <int64_t>(<uint64_t>one - <uint64_t>other)


cdef inline const uint8_t* read_varint(const uint8_t* p, const uint8_t* end, uint64_t* value) noexcept nogil:
    """Read an unsigned varint of at most nine bytes and return the position after it; NULL if it does not end."""
    cdef int bits = 0
    value[0] = 0
    while p < end and bits < 63:
        value[0] |= <uint64_t>(p[0] & 0x7F) << bits
        p += 1
        if p[-1] < 0x80:
            return p
        bits += 7
    return NULL


cdef inline uint8_t* write_varint(uint8_t* out, uint64_t value) noexcept nogil:
    while value >= 0x80:
        out[0] = <uint8_t>(value & 0x7F | 0x80)
        out += 1
        value >>= 7
    out[0] = <uint8_t>value
    return out + 1


cdef inline uint64_t zigzag(int64_t number) noexcept nogil:
    return (<uint64_t>number << 1) ^ <uint64_t>(number >> 63)


cdef inline int varint_bytes(uint64_t value) noexcept nogil:
    cdef int size = 1
    while value >= 0x80:
        value >>= 7
        size += 1
    return size


cdef uint8_t* rebase(
    const uint8_t** read, const uint8_t* behind, uint8_t* out, int64_t offset, int64_t following, int64_t shift_ms
) noexcept nogil:
    """Write the records from ``read`` into ``out`` and move ``read`` to their end; return NULL if it is after
    ``behind``."""
    cdef const uint8_t* p = read[0]
    cdef const uint8_t* end
    cdef const uint8_t* at
    cdef uint64_t length, time
    cdef uint64_t later, delta, size
    cdef uint8_t attributes
    if not -MOST_SHIFT_MS < shift_ms < MOST_SHIFT_MS:
        return NULL
    while offset < following:
        at = read_varint(p, behind, &length)
        if at == NULL or (length & 1) or (length >> 1) > <uint64_t>(behind - at) or length < 6:
            return NULL
        end = at + (length >> 1)
        attributes = at[0]
        at = read_varint(at + 1, end, &time)
        if at == NULL:
            return NULL
        while at < end and at[0] >= 0x80:
            at += 1
        at += 1
        if at > end:
            return NULL
        later = zigzag(shift_ms + <int64_t>((time >> 1) ^ (~(time & 1) + 1)))
        delta = zigzag(offset)
        size = <uint64_t>(end - at) + 1 + varint_bytes(later) + varint_bytes(delta)
        out = write_varint(out, zigzag(<int64_t>size))
        out[0] = attributes
        out = write_varint(out + 1, later)
        out = write_varint(out, delta)
        memcpy(out, at, end - at)
        out += end - at
        p = end
        offset += 1
    read[0] = p
    return out


def plain_run(
    const uint8_t[::1] view not None,
    Py_ssize_t at,
    Py_ssize_t room,
    int attributes,
    int epoch,
    int64_t following,
    Py_ssize_t most_batch_bytes,
):
    cdef int64_t latest_ms = NEVER
    cdef Py_ssize_t number = 0, size, end = view.shape[0]
    cdef const uint8_t* p
    cdef int32_t count
    if at < 0:
        raise ValueError("the start of a run is negative")
    while at + HEADER_BYTES <= end:
        p = &view[at]
        size = <Py_ssize_t><int32_t>u32(p + 8) + LOG_OVERHEAD_BYTES
        count = <int32_t>u32(p + 57)
        room -= size + MORE_BYTES * <Py_ssize_t>count
        if (
            room < 0
            or size > most_batch_bytes
            or size < HEADER_BYTES
            or at + size > end
            or p[16] != 2
            or <int16_t>((<uint32_t>p[21] << 8) | p[22]) != attributes
            or i64(p) != following
            or <int32_t>u32(p + 12) != epoch
            or count < 1
            or <int32_t>u32(p + 23) != count - 1
            or <uint32_t>_checksum(PyMemoryView_FromMemory(<char*>p + 21, size - 21, PyBUF_READ)) != u32(p + 17)
        ):
            break
        if i64(p + 35) > latest_ms:
            latest_ms = i64(p + 35)
        following += count
        number += 1
        at += size
    return at, number, following, latest_ms


def rebased(regions not None, int64_t first_ms, opened=None):
    cdef Py_ssize_t at, end, size, room
    cdef int64_t latest_ms = NEVER, offset = 0, following, count = 0, total_bytes = 0
    cdef list payloads = []
    cdef bytes body = b"", mark = b""
    cdef Py_ssize_t mark_bytes = 0
    cdef bytearray merged
    cdef const uint8_t[::1] view
    cdef const uint8_t* p
    cdef const uint8_t* records_at
    cdef const uint8_t* behind
    cdef uint8_t* start
    cdef uint8_t* out
    for view in regions:
        at, end = 0, view.shape[0]
        while at < end:
            if at + HEADER_BYTES > end:
                raise ValueError("a batch is truncated, or its length is wrong")
            p = &view[at]
            size = <Py_ssize_t><int32_t>u32(p + 8) + LOG_OVERHEAD_BYTES
            if size < HEADER_BYTES or at + size > end:
                raise ValueError("a batch is truncated, or its length is wrong")
            at += size
            size -= HEADER_BYTES
            if opened is not None:
                payloads.append(PyBytes_FromStringAndSize(<const char*>p + HEADER_BYTES, size))
            elif <int32_t>u32(p + 23) > size:
                raise ValueError("the records of a batch do not match its header")
            if <int32_t>u32(p + 23) < -1:
                raise ValueError("the records of a batch do not match its header")
            total_bytes += size
            count += <int64_t><int32_t>u32(p + 23) + 1
    if opened is not None:
        body, mark = opened(payloads)
        mark_bytes = PyBytes_GET_SIZE(mark)
        total_bytes = PyBytes_GET_SIZE(body)
    # A record has at least seven bytes, so a larger count is refused before memory is allocated.
    if count > total_bytes:
        raise ValueError("the records of the batches do not match their headers")
    room = HEADER_BYTES + total_bytes + PREFIX_BYTES * count
    records_at = <const uint8_t*>PyBytes_AS_STRING(body)
    behind = records_at + PyBytes_GET_SIZE(body)
    # Only the header's bytes are filled with zeros, because all would take as long as the records.
    merged = PyByteArray_FromStringAndSize(NULL, room)
    start = <uint8_t*>PyByteArray_AS_STRING(merged)
    memset(start, 0, HEADER_BYTES)
    out = start + HEADER_BYTES
    for view in regions:
        at, end = 0, view.shape[0]
        while at < end:
            p = &view[at]
            size = <Py_ssize_t><int32_t>u32(p + 8) + LOG_OVERHEAD_BYTES
            at += size
            if opened is None:
                records_at = p + HEADER_BYTES
                behind = p + size
            if i64(p + 35) > latest_ms:
                latest_ms = i64(p + 35)
            following = offset + <int32_t>u32(p + 23) + 1
            out = rebase(&records_at, behind, out, offset, following, less(i64(p + 27), first_ms))
            if out == NULL or (opened is None and records_at != behind):
                raise ValueError("the records of a batch do not match its header")
            if opened is not None:
                if behind - records_at < mark_bytes or memcmp(records_at, PyBytes_AS_STRING(mark), mark_bytes):
                    raise ValueError("the records of a batch do not match its header")
                records_at += mark_bytes
            offset = following
    if opened is not None and records_at != behind:
        raise ValueError("the records of the batches do not match their headers")
    PyByteArray_Resize(merged, out - start)
    return merged, offset, latest_ms
