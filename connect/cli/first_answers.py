"""What ``heliograph init`` asks; light, since every start of the command line loads it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from connect.core.errors import ConfigError


class Mode(StrEnum):
    """How it runs: a process of its own for its flows, or connectors in a Connect group."""

    DEDICATED = "dedicated"
    CONNECT = "connect"


class Policy(StrEnum):
    """How a topic is called on the target."""

    DEFAULT = "default"
    IDENTITY = "identity"


@dataclass(frozen=True, slots=True)
class Place:
    """A cluster: what the files call it, and its addresses, ``host:port`` with commas between."""

    alias: str
    servers: str

    @classmethod
    def parse(cls, text: str, key: str) -> Place:
        """From ``alias=host:port,...``; raises ConfigError."""
        alias, equals, servers = (part.strip() for part in text.partition("="))
        if not equals or not alias or not all(char.isalnum() or char in "._-" for char in alias):
            raise ConfigError(f"'{text}' should be an alias and addresses, such as us=us-kafka:9092", key)
        # It loads the clients.
        from connect.kafka.settings import parse_bootstrap

        parse_bootstrap(servers, f"cluster {alias}")
        return cls(alias, servers)


@dataclass(frozen=True, slots=True)
class Answers:
    """What the files are to do; ``topics`` and ``groups`` are lists of regular expressions."""

    source: Place
    target: Place
    mode: Mode = Mode.DEDICATED
    policy: Policy = Policy.DEFAULT
    topics: str = ".*"
    groups: str = ".*"
    moves_groups: bool = False
    both_ways: bool = False
