"""What is found out while a connector or a task is made, and goes into what is told of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from connect.runtime.traces import Secrets


@dataclass(slots=True)
class Known:
    """Filled in step by step, so that an error halfway shows what is known by then and none of the secrets."""

    version: str | None = None
    #: Classes and versions by Java's attributes, as ``task-class``.
    parts: dict[str, str] = field(default_factory=dict)
    #: Of each transform and predicate: kind, alias, class, version.
    steps: list[tuple[str, str, str, str]] = field(default_factory=list)
    secrets: Secrets = field(default_factory=Secrets)
