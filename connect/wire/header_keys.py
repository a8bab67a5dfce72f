"""Keys of headers: text by Kafka's protocol, yet any bytes in fact, as producers other than Java's write them.

Brokers keep these bytes, Java's consumer puts U+FFFD in the place of what is no UTF-8. Here a key is text in which each
such byte is a lone surrogate (PEP 383): nothing of it is lost. Code of other people is shown what Java's would be.
"""

from __future__ import annotations


def key_of(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def bytes_of(key: str) -> bytes:
    """Raises UnicodeEncodeError for halves of surrogate pairs that stand for no byte."""
    return key.encode("utf-8", "surrogateescape")


def is_text(key: str) -> bool:
    """Whether it is UTF-8 on the wire."""
    if key.isascii():
        return True
    try:
        key.encode()
    except UnicodeEncodeError:
        return False
    return True


def readable(key: str) -> str:
    """As Java reads it."""
    return key if is_text(key) else bytes_of(key).decode(errors="replace")
