"""TCP ports for brokers on this machine."""

from __future__ import annotations

import itertools
import random
import socket
from collections.abc import Collection

HOST = "127.0.0.1"

# Below the ranges from which Linux (from 32768) and macOS (from 49152) take the local ports of outgoing connections:
# those could take a broker's port while the broker is down between two starts.
_LOWEST, _HIGHEST = 20_000, 32_000
#: Chosen by this process, which may not listen on them yet.
_given: set[int] = set()


def is_free(port: int) -> bool:
    """Whether a listener could take the port now; connections of an earlier listener in TIME_WAIT do not count."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def choose(count: int, taken: Collection[int] = ()) -> list[int]:
    """Different ports that are free now; another process may still be faster, so a caller tries again then.

    None that was chosen before, as long as there are others.

    Raises:
        OSError: There are not as many.
    """
    candidates = [port for port in range(_LOWEST, _HIGHEST) if port not in taken]
    random.shuffle(candidates)
    candidates.sort(key=_given.__contains__)
    chosen = list(itertools.islice(filter(is_free, candidates), count))
    if len(chosen) < count:
        raise OSError(f"no {count} free ports between {_LOWEST} and {_HIGHEST}")
    _given.update(chosen)
    return chosen
