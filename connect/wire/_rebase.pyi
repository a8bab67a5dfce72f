from collections.abc import Callable

VERSION: int

def plain_run(
    view: memoryview, at: int, room: int, attributes: int, epoch: int, following: int, most_batch_bytes: int
) -> tuple[int, int, int, int]: ...
def rebase_batches(
    parts: list[bytes | memoryview],
    view: memoryview,
    offset: int,
    first_ms: int,
    opened: Callable[[bytes], bytes] | None = None,
) -> tuple[int, int]: ...
