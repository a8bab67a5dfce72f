"""Downloads jars with jgo so that an incomplete or damaged file never gets to its final place."""

from __future__ import annotations

import os
import shutil
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from hashlib import sha256
from pathlib import Path
from typing import TextIO
from urllib.parse import urlsplit

import requests
from jgo.maven import Artifact, Dependency, MavenContext, PythonResolver

from connect.core.errors import DownloadFailed

CENTRAL = "https://repo.maven.apache.org/maven2"
_ATTEMPTS = 3
_PARALLEL = 6
_TIMEOUT_S = 30

Progress = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]
"""jgo's progress callback: takes a file's name and size in bytes, returns a function that takes each chunk's bytes."""


def fetch(coordinates: Sequence[str], repository: Path, mirror: str | None = None) -> list[Path]:
    """Resolve and download into ``repository``, in Maven's layout; return the jars in class path order. Raises
    DownloadFailed if Maven Central does not answer or sends a wrong file, OSError if ``repository`` cannot be written.
    """
    url = (mirror or CENTRAL).rstrip("/")
    staging = repository.parent / "maven.partial"
    shutil.rmtree(staging, ignore_errors=True)
    repository.mkdir(parents=True, exist_ok=True)
    try:
        with _progress(sys.stderr) as progress:
            resolver = _CheckingResolver(repository, progress)
            context = MavenContext(resolver, staging, [repository], {"maven": url}, _TIMEOUT_S)
            return _resolve(context, coordinates)
    except requests.RequestException as error:
        # requests derives its errors from OSError: they come from the network, not from the disk.
        raise DownloadFailed(f"cannot download from {_host(url)}: {_reason(error)}. {_REMEDY}") from error
    except (RuntimeError, ValueError) as error:
        # jgo's text and its cause contain the address as configured, with a password: replace it, and drop the cause.
        text = str(error).replace(url, _host(url))
        raise DownloadFailed(f"cannot resolve {', '.join(coordinates)} at {_host(url)}: {text}. {_REMEDY}") from None
    finally:
        shutil.rmtree(staging, ignore_errors=True)


_REMEDY = (
    "Check the network and HTTPS_PROXY, name a mirror in HELIOGRAPH_MAVEN_URL, "
    "or set KAFKA_HOME to an unpacked Apache Kafka."
)


def _resolve(context: MavenContext, coordinates: Sequence[str]) -> list[Path]:
    # "!" stops jgo from applying each coordinate's dependencyManagement to the others: log4j's would put another
    # version of kafka-clients on a broker's class path.
    wanted = [context.create_dependency(f"{coordinate}!") for coordinate in coordinates]
    inputs, transitive = context.resolver.resolve(wanted)
    dependencies: list[Dependency] = [*inputs, *transitive]
    with ThreadPoolExecutor(_PARALLEL, thread_name_prefix="maven") as pool:
        pending = [pool.submit(dependency.artifact.resolve) for dependency in dependencies]
        try:
            return [future.result() for future in _counted(pending, sys.stderr)]
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _counted(pending: Sequence[Future[Path]], stream: TextIO) -> Iterator[Future[Path]]:
    """Yield what is pending; say every tenth of it where no bars are shown."""
    said = 0
    for number, future in enumerate(pending, 1):
        yield future
        if not stream.isatty() and number * 10 // len(pending) > said:
            said = number * 10 // len(pending)
            print(f"downloading jars: {number} of {len(pending)}", file=stream, flush=True)


class _CheckingResolver(PythonResolver):
    """A resolver that moves a file to its final place only when it is complete, and retries after network errors."""

    def __init__(self, repository: Path, progress: Progress) -> None:
        super().__init__(progress_callback=progress)
        self._repository = repository

    def download(self, artifact: Artifact) -> Path:
        arrived = self._attempt(artifact)
        if arrived is None:
            raise DownloadFailed(f"cannot download {artifact}: not in the repository")
        _check(arrived)
        final = self._repository / arrived.relative_to(artifact.context.repo_cache)
        final.parent.mkdir(parents=True, exist_ok=True)
        os.replace(arrived, final)
        return final

    def _attempt(self, artifact: Artifact) -> Path | None:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return super().download(artifact)
            except requests.RequestException:
                if attempt == _ATTEMPTS:
                    raise
                # jgo fails if the file exists.
                arrived = artifact.context.repo_cache / artifact.component.path_prefix / artifact.filename
                arrived.unlink(missing_ok=True)
        raise AssertionError("unreachable: the last attempt returns or raises")


def pinned_jars() -> dict[str, str]:
    """Return the SHA-256 sums of the default release's jars, by file name."""
    lines = Path(__file__).with_name("jars.sha256").read_text(encoding="ascii").splitlines()
    return {name: digest for digest, name in (line.split() for line in lines)}


def _check(arrived: Path) -> None:
    """Check the SHA-256 of a pinned jar, the CRCs of others: jgo only logs a wrong sum. Poms are parsed at once."""
    if arrived.suffix != ".jar":
        return
    wanted = pinned_jars().get(arrived.name)
    if wanted and sha256(arrived.read_bytes()).hexdigest() != wanted:
        raise DownloadFailed(f"{arrived.name} is not the file that this version was tested with. {_REMEDY}")
    try:
        with zipfile.ZipFile(arrived) as jar:
            broken = jar.testzip()
    except zipfile.BadZipFile as error:
        raise DownloadFailed(f"{arrived.name} arrived corrupt ({error}). Try again.") from error
    if broken:
        raise DownloadFailed(f"{arrived.name} arrived corrupt (in {broken}). Try again.")


@contextmanager
def _progress(stream: TextIO) -> Iterator[Progress]:
    """Show bars on a terminal, else nothing."""
    if not stream.isatty():
        yield lambda name, size_bytes: nullcontext(lambda chunk_bytes: None)
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Bars(*columns, console=Console(file=stream), transient=True) as bars:

        @contextmanager
        def bar(name: str, size_bytes: int) -> Iterator[Callable[[int], None]]:
            task = bars.add_task(f"downloading {name}", total=size_bytes)
            yield lambda chunk_bytes: bars.advance(task, chunk_bytes)
            bars.remove_task(task)

        yield bar


def _host(url: str) -> str:
    """Return the address without user and password, which that of a mirror may contain."""
    return urlsplit(url).hostname or url


def _reason(error: requests.RequestException) -> str:
    if isinstance(error, requests.Timeout):
        return f"no answer within {_TIMEOUT_S} s"
    if isinstance(error, requests.ConnectionError):
        return "no connection"
    return type(error).__name__
