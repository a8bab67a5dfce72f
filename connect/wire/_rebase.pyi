from collections.abc import Callable, Sequence

VERSION: int

def plain_run(
    view: memoryview, at: int, room: int, attributes: int, epoch: int, following: int, most_batch_bytes: int
) -> tuple[int, int, int, int]: ...
def rebased(
    regions: Sequence[memoryview], first_ms: int, opened: Callable[[list[bytes]], tuple[bytes, bytes]] | None = None
) -> tuple[bytearray, int, int]: ...
