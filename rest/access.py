"""Decides who may do what over REST: the roles, the role that each request needs, allowed hosts and origins."""

from __future__ import annotations

import ipaddress
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final
from urllib.parse import quote, unquote

from connect.core.herder_api import BadRequest, Forbidden, NotReady


class Role(IntEnum):
    """What a user may do; each role includes the ones before it. VIEW reads, without passwords. OPERATE also pauses,
    resumes, restarts and stops. ADMIN does everything."""

    NONE = 0
    VIEW = 1
    OPERATE = 2
    ADMIN = 3


@dataclass(frozen=True, slots=True)
class Caller:
    """A user: the name, for the log, and the role."""

    name: str
    role: Role

    def to_header(self, now_s: float) -> str:
        """Return the caller for a request that is forwarded to another worker now; each header is another one."""
        return f"{self.role.name} {quote(self.name)} {int(now_s * 1000)} {secrets.token_hex(16)}"


#: How old a forwarded request may be, and how much the clocks of two workers may differ.
FORWARDED_WITHIN_S: Final = 300.0


class ForwardedCallers:
    """The callers of forwarded requests whose signatures are verified, each request once. ``most`` bounds the memory;
    only workers of the group can fill it."""

    def __init__(self, most: int = 100_000) -> None:
        self._most = most
        #: Until when each nonce is kept, in the order of arrival.
        self._until_s: dict[str, float] = {}

    def caller(self, header: str, now_s: float) -> Caller:
        """Return the caller in a header of :meth:`Caller.to_header`. Raises BadRequest, Forbidden, NotReady."""
        try:
            role, name, sent_ms, nonce = header.split(" ")
            caller, sent_s = Caller(unquote(name), Role[role]), int(sent_ms) / 1000
        except (ValueError, LookupError):
            raise BadRequest("The user of the forwarded request cannot be read.") from None
        if abs(now_s - sent_s) > FORWARDED_WITHIN_S:
            late = f"The forwarded request is from another time than the last {FORWARDED_WITHIN_S:.0f} s."
            raise Forbidden(f"{late} Set the clocks of the workers' machines.")
        while self._until_s and next(iter(self._until_s.values())) < now_s:
            del self._until_s[next(iter(self._until_s))]
        if nonce in self._until_s:
            raise Forbidden("The forwarded request has been handled before.")
        if len(self._until_s) >= self._most:
            raise NotReady("Other workers forward too many requests; try again in a few minutes.")
        # A sender's clock may be ahead.
        self._until_s[nonce] = now_s + 2 * FORWARDED_WITHIN_S
        return caller


#: The user of a worker without authentication.
ANYONE: Final = Caller("anonymous", Role.ADMIN)


@dataclass(frozen=True, slots=True)
class Roles:
    """The role of each principal, such as ``User:ann`` or ``Group:ops``, and of principals that are not named."""

    members: Mapping[str, Role] = field(default_factory=dict)
    default: Role = Role.ADMIN

    def caller(self, user: str, groups: Iterable[str] = ()) -> Caller:
        """Return the user with the highest role that the user or one of the groups has."""
        names = (f"User:{user}", *(f"Group:{each}" for each in groups))
        found = [self.members[name] for name in names if name in self.members]
        return Caller(user, max(found, default=self.default))


_READS: Final = ("GET", "HEAD")
_OPERATIONS: Final = (("PUT", "pause"), ("PUT", "resume"), ("PUT", "stop"), ("POST", "restart"))


def needed_role(method: str, path: str) -> Role:
    """Return the role that a request needs; NONE: no authentication. ``path`` begins below a flow's. Signed requests
    between workers need no role, because the herder verifies their signature; neither do preflights, which browsers
    send without credentials. What is not known needs ADMIN."""
    match method, path.split("/")[1:]:
        case ("POST", ["connectors", _, "tasks"]) | ("PUT", ["connectors", _, "fence"]) | ("OPTIONS", _):
            return Role.NONE
        case (verb, _) if verb in _READS:
            return Role.VIEW
        case (verb, ["connectors", _, word]) if (verb, word) in _OPERATIONS:
            return Role.OPERATE
        case "POST", ["connectors", _, "tasks", _, "restart"]:
            return Role.OPERATE
    return Role.ADMIN


def changes_something(method: str, path: str) -> bool:
    """Return whether a user's request changes something; ``path`` begins below a flow's."""
    return method not in (*_READS, "OPTIONS") and not path.startswith("/connector-plugins/")


def below_flow(path: str) -> str:
    """Return the path below a flow's, ``/{source}/{target}``; the path itself if it has none."""
    segments = path.split("/", 3)
    return path if len(segments) < 3 else f"/{segments[3] if len(segments) > 3 else ''}"


#: What the segment behind one of these names.
_NAMED: Final = {"connectors": "{connector}", "tasks": "{task}", "connector-plugins": "{plugin}", "loggers": "{logger}"}


def route_of(path: str, *, has_flow: bool) -> str:
    """Return a path with names replaced, such as ``/connectors/{connector}/status``, so that there are few of them."""
    below = below_flow(path) if has_flow and not path.startswith(("/ui", "/metrics", "/health")) else path
    parts = below.split("/")
    found = [_NAMED.get(before, part) if part else part for before, part in zip(["", *parts], parts, strict=False)]
    if found[1:2] == ["ui"]:
        found = found[:3]
    return ("/{source}/{target}" if below is not path else "") + "/".join(found[:6])


def is_allowed_host(host: str | None, names: frozenset[str]) -> bool:
    """Return whether a Host header names this worker. A page whose name was bound again to this worker's address sends
    that name (DNS rebinding), so addresses are always allowed; no browser omits the header."""
    if host is None or "*" in names:
        return True
    name = host.rpartition("]")[0].lstrip("[") if host.startswith("[") else host.partition(":")[0]
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name.lower().rstrip(".") in names
    return True


def is_own_origin(origin: str, host: str | None) -> bool:
    """Return whether a page of ``origin`` is of this worker; a proxy may have removed TLS, so schemes may differ."""
    return origin.partition("://")[2].lower() == (host or "").lower() != ""
