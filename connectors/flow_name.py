"""Which flow: the aliases of its clusters."""

from __future__ import annotations

from typing import NamedTuple


class FlowName(NamedTuple):
    """A flow by the aliases of its clusters. Its text is that of a properties file, like ``us->eu``."""

    source: str
    target: str

    def __str__(self) -> str:
        return f"{self.source}->{self.target}"
