"""``transform.sql`` as Spark's DataFrames: checked over no record at all, and laid between the two halves of a slice.

Only what both a session with a JVM and one of Spark Connect have is used. The expressions are Spark's to judge and to
evaluate.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import re
from typing import Any, Final

from connect.core.errors import ConfigError
from connectors.transforms.sql_query import CHANGEABLE, COLUMNS, KEY, PLACE, VIEW, RecordsQuery, parse_query

#: Spark cuts what goes to Python into batches of so many rows, and hands none over before it is full.
ARROW_ROWS_KEY: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"
#: What a slice gives to Spark: the place of a row, a record's columns, and notes from half to half.
STAGE_DDL: Final = "__row BIGINT, __note BINARY, " + ", ".join(f"{name} {type_}" for name, type_ in COLUMNS.items())
_SHARED_EVALUATION: Final = "spark.sql.subexpressionElimination.enabled"
_NODE: Final = re.compile(r"^[\s:|+!'-]*([A-Z]\w*)", re.MULTILINE)
#: What the plan of a query may consist of: each row by itself.
_NODES: Final = frozenset(("Project", "Filter", "SubqueryAlias", "View", "LocalRelation", "OneRowRelation", "Range"))
_NOT_DETERMINISTIC: Final = "NON_DETERMINISTIC"
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
    # What Spark takes for text need not be UTF-8, and no batch of rows with such text can be read.
    "topic": "CAST(CAST(topic AS STRING) AS BINARY) AS topic",
    "headers": "CAST(headers AS ARRAY<STRUCT<key: BINARY, value: BINARY>>) AS headers",
}


def problem_of(session: Any, text: str) -> str:
    """Why a query cannot be used, in Spark's own words where they are Spark's; empty where it can."""
    try:
        query = parse_query(text)
        _columns(session).createOrReplaceTempView(VIEW)
        frame = session.sql(query.text)
        frame.columns  # noqa: B018  # what Spark Connect analyses, it analyses when it is asked for something
        _refuse_plan(frame)
        _changed(session, query)
        _refuse_chance(session, query)
    except ConfigError as error:
        return error.message
    except Exception as error:
        if not type(error).__module__.startswith("pyspark"):
            raise
        return f"{KEY} is not usable: Spark says: {first_lines(error)}"
    return ""


def transformed(session: Any, records: Any, text: str) -> Any:
    """``records`` (of ``STAGE_DDL``) with ``__row``, ``__note``, ``__unfit``, ``__keep`` and the columns that a query
    changes.

    A row at which the query raises is ``__unfit``, and the job goes on: everything is evaluated twice, first inside of
    what Spark makes of its try functions, which takes whatever is raised within. As in a query that drops rows, what
    the condition does not let pass is not looked at further. Raises ConfigError, or what Spark finds.
    """
    functions = _functions(session)
    query = parse_query(text)
    _columns(session).createOrReplaceTempView(VIEW)
    changed = _changed(session, query)
    # What two expressions share would be evaluated before either, and so outside.
    session.conf.set(_SHARED_EVALUATION, "false")
    keep = functions.expr(f"coalesce(CAST(({query.condition or 'true'}\n) AS BOOLEAN), false)")
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
    return frame.selectExpr(*own, *(_returned(name, type_) for name, type_ in changed.items()))


def first_lines(error: Exception) -> str:
    """What Spark says, without the picture of the plan."""
    said = str(error).partition(";\n")[0].partition("\n\nJVM stacktrace")[0]
    return " ".join(said.split())


def _columns(session: Any) -> Any:
    """No record at all, with the columns of one."""
    columns = ", ".join(f"CAST(NULL AS {type_}) AS {name}" for name, type_ in COLUMNS.items())
    return session.sql(f"SELECT {columns} WHERE false")


def _refuse_plan(frame: Any) -> None:
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        frame.explain(extended=True)
    analyzed = shown.getvalue().partition("== Analyzed Logical Plan ==")[2].partition("== Optimized")[0]
    found = {node for node in _NODE.findall(analyzed.strip().partition("\n")[2]) if node not in _NODES}
    if found:
        names = ", ".join(sorted(found))
        raise ConfigError(
            f"{KEY} is not usable: each record has to be looked at by itself, and Spark plans {names}", KEY
        )


def _changed(session: Any, query: RecordsQuery) -> dict[str, str]:
    """The columns that a query makes, and Spark's names of their types."""
    changed: dict[str, str] = {}
    for item in query.changing:
        for name, type_ in session.sql(f"SELECT {item}\n FROM {VIEW} AS {query.sql_alias}").dtypes:
            _refuse_column(item, name.lower(), type_, changed)
            changed[name.lower()] = type_
    return changed


def _refuse_column(item: str, name: str, type_: str, changed: dict[str, str]) -> None:
    if name in PLACE:
        raise ConfigError(f"{KEY} is not usable: {name} cannot be changed yet, and {item} is another one", KEY)
    if name not in CHANGEABLE:
        raise ConfigError(
            f"{KEY} is not usable: a record has no column {name}; write {item} AS one of {', '.join(CHANGEABLE)}", KEY
        )
    if name in changed:
        raise ConfigError(f"{KEY} is not usable: {name} is named twice", KEY)
    if type_ not in _TAKEN[name]:
        raise ConfigError(
            f"{KEY} is not usable: {name} has to be {' or '.join(_TAKEN[name][:2])}, and is {type_}; cast it", KEY
        )


def _refuse_chance(session: Any, query: RecordsQuery) -> None:
    """What is measured of a frame may not be left to chance either, and there Spark says so by itself."""
    items = [f"({query.condition}\n)"] if query.condition else []
    for item in (*items, *query.changing):
        probe = session.sql(query.over(VIEW, (), tuple(COLUMNS)))
        try:
            probe.observe("chance", _functions(session).expr(item)).columns  # noqa: B018
        except Exception as error:
            if _NOT_DETERMINISTIC in str(error).upper().replace("-", "_"):
                raise ConfigError(
                    f"{KEY} is not usable: {item} is not deterministic; a copy that goes on after a crash runs the "
                    "query again, and has to get the same",
                    KEY,
                ) from error


def _functions(session: Any) -> Any:
    """What makes columns: a session of Spark Connect has its own, and pyspark tells them apart by no session."""
    return importlib.import_module(f"{type(session).__module__.rpartition('.')[0]}.functions")


def _returned(name: str, type_: str) -> str:
    if name == "timestamp":
        return "timestamp" if type_ == "bigint" else "unix_millis(timestamp) AS timestamp"
    return _AS_RETURNED[name]
