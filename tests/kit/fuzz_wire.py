"""``python -m tests.kit.fuzz_wire --seconds 60``: fuzz the decoders of ``connect.wire`` by ``atheris`` (in no lock)."""

from __future__ import annotations

import argparse
import sys
import tempfile
from contextlib import suppress
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description="Fuzz the decoders of connect.wire with atheris.")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    try:
        import atheris
    except ModuleNotFoundError:
        sys.exit("this needs the package atheris: .venv/bin/uv pip install atheris")
    with atheris.instrument_imports(include=["connect.wire", "aiokafka.record", "aiokafka.codec"]):
        from connect.wire import batch, fetch_produce, merge, rebase, records  # noqa: F401
    from connect.wire.batch import HEADER_BYTES
    from tests.unit.connect.wire.test_hostile_bytes import DECODERS, SAMPLES

    names = sorted(DECODERS)

    def run(data: bytes) -> None:
        if not data:
            return
        name = names[data[0] % len(names)]
        decode, documented = DECODERS[name]
        if name in ("records", "merge") and len(data) - 1 < HEADER_BYTES:
            return  # a caller has cut it out by its length
        with suppress(*documented):
            decode(data[1:])

    with tempfile.TemporaryDirectory() as corpus:
        for number, sample in enumerate(sample for sample in SAMPLES for _ in names):
            (Path(corpus) / str(number)).write_bytes(bytes([number % len(names)]) + sample)
        limits = [f"-max_total_time={options.seconds}", f"-seed={options.seed}", "-rss_limit_mb=1024", "-timeout=10"]
        atheris.Setup([sys.argv[0], *limits, "-max_len=4096", "-print_final_stats=1", corpus], run)
        atheris.Fuzz()  # ends the process


if __name__ == "__main__":
    main()
