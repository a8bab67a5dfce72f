"""Count how many values of a dict a piece of work looks at."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Counted(dict[K, V]):
    """A dict that counts the keys and values that it gives out, in ``looked_at``."""

    looked_at = 0

    def __iter__(self) -> Iterator[K]:
        return self._counting(super().__iter__())

    def __getitem__(self, key: K) -> V:
        self.looked_at += 1
        return super().__getitem__(key)

    def get(self, key: K, default: Any = None) -> Any:
        self.looked_at += 1
        return super().get(key, default)

    def keys(self) -> Any:
        return self._counting(super().keys())

    def values(self) -> Any:
        return self._counting(super().values())

    def items(self) -> Any:
        return self._counting(super().items())

    def _counting(self, given: Any) -> Iterator[Any]:
        for one in given:
            self.looked_at += 1
            yield one
