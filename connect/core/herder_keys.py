"""Session keys (KIP-507): the leader makes one where there is none, and another when its time is over."""

from __future__ import annotations

from connect.core import signing
from connect.core.configlog import session_key_record
from connect.core.events import MakeSessionKey
from connect.core.herder_state import HerderState, pause_ms
from connect.core.membership import SESSIONED


def are_used(s: HerderState) -> bool:
    """Whether requests between workers are signed in the group as it stands."""
    return s.protocol == SESSIONED


def is_due(s: HerderState) -> bool:
    settings = s.settings
    return (
        s.is_leader
        and are_used(s)
        and s.key_again_ms <= s.now_ms
        and signing.must_be_replaced(
            s.log.session_key, settings.key_algorithm, settings.key_size_bits, settings.key_ttl_ms, s.now_ms
        )
    )


def ask(s: HerderState) -> None:
    """Have a key made; nothing else is begun until it is written."""
    s.making_key = True
    s.emit(MakeSessionKey(signing.key_bytes(s.settings.key_algorithm, s.settings.key_size_bits)))


def made(s: HerderState, key: bytes) -> None:
    """Write the new key, if it is still ours to write."""
    s.making_key = False
    if not is_due(s):
        return
    s.say("Distributing a new session key")

    def written(error: Exception | None) -> None:
        if error is None:
            s.key_failures = 0
            return
        wait_ms = pause_ms(s.key_failures)
        s.key_failures += 1
        s.key_again_ms = s.now_ms + wait_ms
        s.must_read = True
        s.say(
            "The new session key could not be written; the config topic is read, and another try made in "
            f"{wait_ms} ms: {error}",
            "warning",
        )

    s.write_config([(session_key_record(signing.SessionKey(key, s.settings.key_algorithm, s.now_ms)),)], written)


def deadline_ms(s: HerderState) -> int | None:
    """When the leader is to make the next key."""
    if not s.is_leader or not are_used(s):
        return None
    if s.key_again_ms > s.now_ms:
        return s.key_again_ms
    key = s.log.session_key
    return key.created_ms + s.settings.key_ttl_ms if key is not None and s.settings.key_ttl_ms else None
