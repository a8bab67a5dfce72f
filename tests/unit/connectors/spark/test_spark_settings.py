"""Which keys reach which Spark, what stands in for those that nobody named, and how many slices fit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from connect.core.errors import ConfigError
from connectors.spark.config import PROTECTION, SparkKind, SparkSettings, check_spark
from connectors.spark.python_daemon import PLACE_VARIABLE

JAVA = Path("/java")
SECRET = {"spark.master": "spark://m:7077", "spark.authenticate.secret": "s"}


def settings(conf: dict[str, str], slices: int = 2) -> SparkSettings:
    return SparkSettings(JAVA, conf, slices)


@pytest.mark.parametrize(
    ("conf", "kind"),
    [
        ({}, SparkKind.LOCAL),
        ({"spark.master": "local"}, SparkKind.LOCAL),
        ({"spark.master": "local[*]"}, SparkKind.LOCAL),
        ({"spark.master": "local[8,4]"}, SparkKind.LOCAL),
        ({"spark.master": "local-cluster[2,1,1024]"}, SparkKind.CLUSTER),
        ({"spark.master": "spark://m:7077"}, SparkKind.CLUSTER),
        ({"spark.master": "yarn"}, SparkKind.CLUSTER),
        ({"spark.master": "k8s://https://api:6443"}, SparkKind.CLUSTER),
        ({"spark.remote": "sc://server:15002"}, SparkKind.CONNECT),
    ],
)
def test_the_keys_say_which_spark_is_meant(conf: dict[str, str], kind: SparkKind) -> None:
    assert settings(conf).kind is kind


def test_the_users_keys_win_everywhere() -> None:
    for conf in ({}, {"spark.master": "spark://m:7077"}, {"spark.remote": "sc://server"}):
        mine = {**conf, "spark.driver.memory": "3g", "spark.cores.max": "9", "spark.sql.adaptive.enabled": "true"}
        merged = settings(mine).merged()
        assert {key: merged[key] for key in mine} == mine


def test_only_a_spark_of_this_machine_is_held_to_loopback_and_forks_from_our_daemon() -> None:
    local, cluster = settings({}).merged(), settings({"spark.master": "spark://m:7077"}).merged()
    for key in ("spark.driver.host", "spark.driver.bindAddress", "spark.python.daemon.module"):
        assert key in local
        assert key not in cluster


def test_a_cluster_gives_a_slot_for_each_slice_and_no_more() -> None:
    assert settings({"spark.master": "spark://m:7077"}, slices=3).merged()["spark.cores.max"] == "3"


def test_a_server_is_told_nothing_that_is_its_own_to_say() -> None:
    merged = settings({"spark.remote": "sc://server"}).merged()
    assert {key for key in merged if not key.startswith("spark.sql.")} == {"spark.remote"}


def test_the_python_of_executors_is_the_users_the_environments_or_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = {"spark.master": "spark://m:7077"}
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    assert settings(cluster).environment("x")["PYSPARK_PYTHON"] == sys.executable
    monkeypatch.setenv("PYSPARK_PYTHON", "python3.11")
    assert settings(cluster).environment("x")["PYSPARK_PYTHON"] == "python3.11"
    assert settings({**cluster, "spark.pyspark.python": "/p"}).environment("x")["PYSPARK_PYTHON"] == "/p"
    assert settings({}).environment("x")["PYSPARK_PYTHON"] == sys.executable, "forked from this installation"


def test_spark_gets_neither_secrets_nor_what_would_lead_it_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("US_PASSWORD", "SPARK_REMOTE", "HADOOP_CONF_DIR"):
        monkeypatch.setenv(name, "x")
    environment = SparkSettings(JAVA, {}, hidden=frozenset({"US_PASSWORD"})).environment("/scratch")
    assert "HADOOP_CONF_DIR" in environment
    assert not {"US_PASSWORD", "SPARK_REMOTE"} & set(environment)
    assert environment["SPARK_LOCAL_DIRS"] == "/scratch"
    assert "SPARK_LOCAL_DIRS" not in settings({"spark.local.dir": "/mine"}).environment("/scratch")


def test_only_a_spark_of_this_machine_with_our_daemon_gets_one_early() -> None:
    def place(conf: dict[str, str]) -> str | None:
        return settings(conf).environment("/scratch").get(PLACE_VARIABLE)

    assert place({}) == "/scratch/daemon"
    others = ({"spark.master": "spark://m:7077"}, {"spark.remote": "sc://m"}, {"spark.python.daemon.module": "own"})
    assert [place(conf) for conf in others] == [None, None, None]


def test_the_folder_of_the_worker_lends_spark_no_modules(tmp_path: Path) -> None:
    strange = tmp_path / "connectors"
    strange.mkdir()
    (strange / "__init__.py").write_text("raise SystemExit('modules of the working directory are loaded')")
    command = [sys.executable, "-m", "connectors.control_link.protocol"]
    subprocess.run(command, cwd=tmp_path, env=settings({}).environment("x"), check=True)


def test_where_spark_is_holds_no_token() -> None:
    assert settings({"spark.remote": "sc://server:443/;token=secret;use_ssl=true"}).place == "sc://server:443"
    assert settings({"spark.master": "spark://m:7077"}).place == "spark://m:7077"


@pytest.mark.parametrize(
    ("conf", "slices", "words"),
    [
        ({"spark.master": "local[2]"}, 3, ("spark.master = local[2] has 2", "local[3,4]")),
        ({"spark.master": "local"}, 2, ("has 1", "local[2,4]")),
        ({**SECRET, "spark.cores.max": "3"}, 4, ("spark.cores.max = 3", "raise it to 4")),
        ({"spark.master": "spark://m:7077", "spark.remote": "sc://s"}, 1, ("both set",)),
        ({"spark.remote": "local[4]"}, 1, ("sc://host:port",)),
        ({"spark.master": "spark://m:7077"}, 1, ("set spark.authenticate.secret (", "spark.insecure = true")),
        ({"spark.master": "local-cluster[1,1,512]"}, 1, ("set spark.authenticate.secret (",)),
        ({"spark.authenticate": "false"}, 1, ("set spark.authenticate = true",)),
        ({"spark.master": "yarn", "spark.io.encryption.enabled": "no"}, 1, ("set spark.io.encryption.enabled = true",)),
        ({**SECRET, "spark.network.crypto.enabled": "false"}, 1, ("set spark.network.crypto.enabled = true",)),
        ({"spark.remote": "sc://s"}, 1, ("set spark.remote = sc://host:port/;use_ssl=true",)),
        ({"spark.remote": "sc://s:15002/;token=t"}, 1, ("use_ssl=true",)),
        ({"spark.remote": "sc://s/;use_ssl=trueish"}, 1, ("use_ssl=true",)),
        ({"spark.remote": "sc://s/;USE_SSL=true"}, 1, ("use_ssl=true",)),
        ({"spark.remote": "sc://s/;use_ssl=true;use_ssl=false"}, 1, ("use_ssl=true",)),
    ],
)
def test_what_cannot_work_is_refused_with_its_key(conf: dict[str, str], slices: int, words: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        check_spark(settings(conf, slices))
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    "conf",
    [
        {},
        {"spark.master": "local[4]"},
        SECRET,
        {"spark.master": "spark://m:7077", "spark.insecure": "true"},
        {"spark.master": "yarn"},
        {"spark.master": "k8s://https://m"},
        {"spark.remote": "sc://s/;use_ssl=true;token=t"},
        {"spark.remote": "sc://localhost:15002"},
        {"spark.remote": "sc://[::1]"},
        {"spark.remote": "sc://s", "spark.insecure": "true"},
    ],
)
def test_what_may_work_is_let_through(conf: dict[str, str]) -> None:
    check_spark(settings(conf))


def test_spark_authenticates_and_encrypts_unless_the_user_insists() -> None:
    for conf in ({}, SECRET, {"spark.master": "yarn"}):
        merged = settings(conf).merged()
        assert PROTECTION.items() <= merged.items()
        assert merged["spark.network.crypto.cipher"] == "AES/GCM/NoPadding"
    merged = settings({"spark.master": "spark://m:7077", "spark.insecure": "true"}).merged()
    assert not [key for key in merged if "authenticate" in key or "crypt" in key or "insecure" in key]
