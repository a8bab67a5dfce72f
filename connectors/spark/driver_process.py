"""Run the Spark driver: a child process of the worker that holds the session, starts jobs and reports when they end.

It also checks ``transform.sql`` on an empty frame, and puts the query between the two halves of a slice, as Spark
DataFrames. Spark itself checks and evaluates the expressions. Only APIs that both classic Spark and Spark Connect have
are used.

As a child process it keeps pandas, py4j, gRPC and their threads out of the worker, and can be replaced when its JVM or
server is lost. Commands are JSON lines on standard input, events are JSON lines on standard output:

    in   {"conf": {...}, "properties": text, "archive": path or "", "close_timeout_s": 3.0}
                                                           once, first; the keys, also as a properties file, the code
                                                           to ship, and how long an orderly end may take
         {"type": "start", "job": id, "query": text, "payload": {...}}    one slice; its task gets the payload
         {"type": "cancel", "job": id}                     the last resort
         {"type": "check", "job": id, "query": text}       can this be a transform.sql?
    out  {"type": "ready", "spark": "4.3.0"}, {"type": "alive"}, {"type": "notice", "text"},
         {"type": "done", "job", "result": why a checked query cannot be used, else empty},
         {"type": "failed", "job", "failure": {...}}, {"type": "lost", "reason"}, {"type": "broken", "failure": {...}}

The process ends with its standard input, so a killed worker leaves no Spark behind.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import logging
import os
import re
import sys
import threading
import time
from functools import partial
from typing import Any, Final, NoReturn, TextIO

from connect.core.errors import ConfigError
from connectors.dataplane import slice_job
from connectors.spark.sessions import Session, SparkFailure, failure_of, session_for
from connectors.transforms.sql_query import CHANGEABLE, COLUMNS, PLACE, RecordsQuery, parse_query, refused

#: Spark passes rows to Python in batches of this size, and passes none before it is full.
ARROW_ROWS_KEY: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"
#: The rows that a slice passes to Spark: row number, a note for the slice's second half, and the record's columns.
_STAGE: Final = {"__row": "BIGINT", "__note": "BINARY", **COLUMNS}
STAGE_DDL: Final = ", ".join(f"{name} {type_}" for name, type_ in _STAGE.items())
_OFF: Final = (
    # Would give a query the variables of Spark's process, ``${env:NAME}``, and files as tables.
    "spark.sql.variable.substitute",
    "spark.sql.runSQLOnFiles",
    # Spark would evaluate a shared subexpression first, and so outside of the try function.
    "spark.sql.subexpressionElimination.enabled",
)
#: Explain prints a tree: what has one child only has no line that begins with a colon.
_NODE: Final = re.compile(r"^ *\+- (?:\*\(\d+\) )?[!']*(\w+)", re.MULTILINE)
_BRANCH: Final = re.compile(r"^ *:(?: {2}|- )", re.MULTILINE)
#: The nodes between the two Python stages of a job, and below them. A query adds nodes to neither.
_NODES: Final = frozenset(("Project", "SubqueryAlias", "MapInArrow", "Range"))
#: Explain's text goes through the process's standard output.
_EXPLAINING: Final = threading.Lock()
_TAKEN: Final = {
    "key": ("string", "binary", "void"),
    "value": ("string", "binary", "void"),
    "timestamp": ("timestamp", "bigint"),
    "headers": ("array<struct<key:string,value:binary>>", "array<struct<key:string,value:string>>"),
    "topic": ("string", "void"),
}
_AS_RETURNED: Final = {
    "key": "CAST(key AS BINARY) AS key",
    "value": "CAST(value AS BINARY) AS value",
    # Because a Spark string need not be valid UTF-8, and then its whole batch of rows could not be read.
    "topic": "CAST(CAST(topic AS STRING) AS BINARY) AS topic",
    "headers": "CAST(headers AS ARRAY<STRUCT<key: BINARY, value: BINARY>>) AS headers",
}


def problem_of(session: Any, text: str) -> str:
    """Return why a query cannot be used, in Spark's words if Spark refuses it; empty if it can be used."""
    try:
        rows = (f"CAST(NULL AS {type_}) AS {name}" for name, type_ in _STAGE.items())
        transformed(session, session.range(1, numPartitions=1).selectExpr(*rows), text)
    except ConfigError as error:
        return error.message
    except Exception as error:
        if not type(error).__module__.startswith("pyspark"):
            raise
        return refused(f"Spark says: {first_lines(error)}").message
    return ""


def transformed(session: Any, records: Any, text: str) -> Any:
    """Return ``records`` (of ``STAGE_DDL``) as ``__row``, ``__note``, ``__unfit``, ``__keep`` and the query's columns.

    A row for which the query raises is ``__unfit``, and the job continues: all expressions are evaluated twice, first
    within one of Spark's try functions, which catches what they raise. Columns of rows that the condition drops are not
    evaluated. The frame's plan is checked: it does nothing else than to compute columns of each row. Raises
    ConfigError, or pyspark's exceptions.
    """
    # Spark Connect has a module of its own.
    functions = importlib.import_module(f"{type(session).__module__.rpartition('.')[0]}.functions")
    query = parse_query(text)
    for key in _OFF:
        session.conf.set(key, "false")
    keep = functions.expr(f"coalesce(CAST(({query.condition or 'true'}) AS BOOLEAN), false)")
    # A query cannot name the columns that are ours.
    own_columns = records.select(*COLUMNS).alias(query.alias)
    own_columns.select(keep.alias("keep")).columns  # noqa: B018  # Spark Connect analyses what is asked for only
    changed = _changed(functions, own_columns, query)
    items = [functions.when(keep, functions.expr(item)) for item in query.changing]
    tried = functions.xxhash64(keep, *items).cast("string")
    unfit = functions.call_function("try_to_binary", tried, functions.lit("utf-8")).isNull()
    looked_at = records.alias(query.alias).select("*", unfit.alias("__unfit")).alias(query.alias)
    is_fit = ~functions.col("__unfit")
    frame = looked_at.select(
        "__row",
        "__note",
        "__unfit",
        functions.when(is_fit, keep).alias("__keep"),
        *(functions.when(is_fit, item).alias(name) for item, name in zip(items, changed, strict=True)),
    )
    own = ("__row", "__note", "__unfit", "__keep")
    result = frame.selectExpr(*own, *(_returned(name, type_) for name, type_ in changed.items()))
    _refuse_plan(result)
    return result


def first_lines(error: Exception) -> str:
    """Return Spark's message without the query plan."""
    said = str(error).partition(";\n")[0].partition("\n\nJVM stacktrace")[0]
    return " ".join(said.split())


def _refuse_plan(frame: Any) -> None:
    """Refuse a plan that reads anything but the rows of the frame. All that explain prints is looked at, because a text
    of the query may look like one of its headings; so a text can add to what is found, and hide nothing."""
    shown = io.StringIO()
    with _EXPLAINING, contextlib.redirect_stdout(shown):
        frame.explain(extended=True)
    nodes = set(_NODE.findall(shown.getvalue()))
    found = ["a subquery"] if _BRANCH.search(shown.getvalue()) else sorted(nodes - _NODES)
    if found or "Range" not in nodes:
        names = ", ".join(found) or "nothing"
        raise refused(f"it must transform each record by itself, but Spark plans {names}")


def _changed(functions: Any, records: Any, query: RecordsQuery) -> dict[str, str]:
    """Return the columns that a query changes, with Spark's names of their types."""
    changed: dict[str, str] = {}
    for item in query.changing:
        for name, type_ in records.select(functions.expr(item)).dtypes:
            _refuse_column(item, name.lower(), type_, changed)
            changed[name.lower()] = type_
    return changed


def _refuse_column(item: str, name: str, type_: str, changed: dict[str, str]) -> None:
    if name in PLACE:
        raise refused(f"{name} cannot be changed yet, but {item} changes it")
    if name not in CHANGEABLE:
        raise refused(f"a record has no column {name}; write {item} AS one of {', '.join(CHANGEABLE)}")
    if name in changed:
        raise refused(f"{name} is named twice")
    if type_ not in _TAKEN[name]:
        raise refused(f"{name} has to be {' or '.join(_TAKEN[name][:2])}, but is {type_}; cast it")


def _returned(name: str, type_: str) -> str:
    if name == "timestamp":
        return "timestamp" if type_ == "bigint" else "unix_millis(timestamp) AS timestamp"
    return _AS_RETURNED[name]


_LOST: Final = 3
#: How often Spark is asked whether it answers. Answers are reported to the worker, which decides what silence means.
ALIVE_EVERY_S: Final = 3.0


class SparkDriver:
    """One session and its jobs, each in a separate thread."""

    def __init__(self, session: Session, events: TextIO) -> None:
        self._session = session
        self._events = events
        self._lock = threading.Lock()
        self._is_open = False

    def emit(self, event: dict[str, Any]) -> None:
        with self._lock, contextlib.suppress(BrokenPipeError):
            self._events.write(json.dumps(event) + "\n")
            self._events.flush()

    def open(self, conf: dict[str, str], properties: str, archive: str) -> None:
        # Because the user gets the reason why a query is refused, and pyspark would print pages as well.
        logging.getLogger("SQLQueryContextLogger").disabled = True
        for text in self._session.open(conf, properties, self._lost):
            self.emit({"type": "notice", "text": text})
        if archive:
            self._session.ship(archive)
        self._session.wake()
        self._is_open = True
        self.emit({"type": "ready", "spark": self._session.version()})
        threading.Thread(target=self._ask_forever, name="is Spark alive", daemon=True).start()

    def _lost(self, reason: str) -> NoReturn:
        """End the process, because without its JVM or server the session is useless; the worker starts another."""
        self.emit({"type": "lost", "reason": reason})
        os._exit(_LOST)

    def _ask_forever(self) -> None:
        while True:
            time.sleep(ALIVE_EVERY_S)
            try:
                self._session.ask()
            except Exception as error:
                if not self._is_open:  # it is closing, which may take the JVM some seconds
                    return
                self._lost(failure_of(error).text)
            self.emit({"type": "alive"})

    def obey(self, command: dict[str, Any]) -> None:
        """Start, check or cancel a job in a thread, so that a server that does not answer delays no other command."""
        match command:
            case {"type": "start", "job": job, "query": query, "payload": payload}:
                thread = self._session.thread(self._run, (job, query, payload), f"job {job}")
            case {"type": "check", "job": job, "query": query}:
                thread = self._session.thread(self._check, (job, query), f"check {job}")
            case {"type": "cancel", "job": job}:
                thread = threading.Thread(target=self._cancel, args=(job,), name=f"cancel job {job}", daemon=True)
            case _:
                return
        thread.start()

    def _check(self, job: str, query: str) -> None:
        try:
            self.emit({"type": "done", "job": job, "result": self._session.use(partial(problem_of, text=query))})
        except Exception as error:
            self._failed(job, error)

    def _failed(self, job: str, error: Exception) -> None:
        self.emit({"type": "failed", "job": job, "failure": failure_of(error).to_wire()})

    def _cancel(self, job: str) -> None:
        # The cancel only frees Spark's slot; the slice has ended by its link long before.
        with contextlib.suppress(Exception):
            self._session.cancel(job)

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._session.close()

    def _run(self, job: str, query: str, payload: dict[str, Any]) -> None:
        try:
            name, number = payload["slice"], payload["epoch"]
            description = f"{name}, task {number}" if slice_job.FUNCTION in payload else f"copy {name}, epoch {number}"
            if query:
                self._session.run(job, description, lambda session: _frame(session, query, payload))
            else:
                self._session.copy(job, description, payload)
            self.emit({"type": "done", "job": job, "result": ""})
        except Exception as error:
            self._failed(job, error)


def main() -> None:
    """Serve the worker until it closes standard input."""
    # Redirect prints of Spark, the JVM and libraries to stderr, because standard output is for events.
    events = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    first = json.loads(sys.stdin.readline())
    driver = SparkDriver(session_for(first["conf"]), events)
    try:
        driver.open(first["conf"], first["properties"], first["archive"])
    except Exception as error:
        driver.emit({"type": "broken", "failure": _why_broken(error, first["conf"]).to_wire()})
        os._exit(1)
    for line in sys.stdin:
        driver.obey(json.loads(line))
    if not first["close_timeout_s"]:
        os._exit(0)
    # A JVM that does not stop, and threads that wait for it, must not keep the process alive.
    threading.Timer(first["close_timeout_s"], os._exit, (0,)).start()
    with contextlib.suppress(Exception):
        driver.close()
    os._exit(0)


def _why_broken(error: Exception, conf: dict[str, str]) -> SparkFailure:
    if isinstance(error, ImportError) and "spark.remote" in conf:
        text = f"a package for Spark Connect is missing ({error}); run pip install 'heliograph[connect]'"
        return SparkFailure(" ".join(text.split()), settings=True)
    return failure_of(error)


def _frame(session: Any, query: str, payload: dict[str, Any]) -> Any:
    """Return a frame of two Python stages in one task, with the query between them."""
    first = partial(slice_job.transform, {**payload, "arrow_rows": int(session.conf.get(ARROW_ROWS_KEY))})
    records = session.range(1, numPartitions=1).mapInArrow(first, STAGE_DDL)
    return transformed(session, records, query).mapInArrow(slice_job.collect, slice_job.SCHEMA_DDL)


if __name__ == "__main__":
    main()
