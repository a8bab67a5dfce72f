"""``transform.sql`` taken apart, and what is refused before Spark is asked."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connect.core.errors import ConfigError
from connectors.transforms.sql_query import parse_query
from tests.kit.hostile_queries import ATTACKS

EXAMPLE = "SELECT key, regexp_replace(value, '[0-9]{16}', '****') AS value FROM records WHERE topic <> 'orders.test'"


def test_the_example_is_a_column_that_changes_and_a_condition() -> None:
    query = parse_query(EXAMPLE)
    assert query.items == ("key", "regexp_replace(value, '[0-9]{16}', '****') AS value")
    assert query.changing == query.items[1:]
    assert query.condition == "topic <> 'orders.test'"


@pytest.mark.parametrize(
    ("text", "changing", "condition"),
    [
        ("SELECT * FROM records", (), ""),
        ("select r.key, `value` from records as r", (), ""),
        ("SELECT upper(value) v, * FROM records r WHERE r.key > 'a';", ("upper(value) v",), "r.key > 'a'"),
        ("SELECT substring(value FROM 2) AS value FROM records", ("substring(value FROM 2) AS value",), ""),
        ("SELECT 'a, FROM x' AS value FROM records -- WHERE", ("'a, FROM x' AS value",), ""),
        ("SELECT key IS DISTINCT FROM value AS key FROM records", ("key IS DISTINCT FROM value AS key",), ""),
        ("SELECT key FROM records WHERE -- why\n key > 'a' -- so", (), "key > 'a'"),
        ("SELECT 'rand() now' AS value FROM records", ("'rand() now' AS value",), ""),
        ("SELECT rand.key AS key FROM records rand", ("rand.key AS key",), ""),
        ("SELECT `rand`.key AS `current_date` FROM records `rand`", ("`rand`.key AS `current_date`",), ""),
        ("SELECT upper(`uuid`) AS key FROM records", ("upper(`uuid`) AS key",), ""),
        ("SELECT user.key AS key FROM records user", ("user.key AS key",), ""),
        ("SELECT value.user AS key FROM records", ("value.user AS key",), ""),
        ("SELECT value.`current_timestamp` AS key FROM records", ("value.`current_timestamp` AS key",), ""),
        ("SELECT `unix_timestamp`(value) AS key FROM records", ("`unix_timestamp`(value) AS key",), ""),
        ("SELECT replace(value, 'today') AS value FROM records", ("replace(value, 'today') AS value",), ""),
        (r"SELECT replace(value, r'\d', '''') AS value FROM records", (r"replace(value, r'\d', '''') AS value",), ""),
        ("SELECT system.builtin.upper(key) AS key FROM records", ("system.builtin.upper(key) AS key",), ""),
        ("SELECT /*+ hint('*/ upper(key) AS key FROM records", ("upper(key) AS key",), ""),
        ("SELECT CAST(1e3 AS decimal(9, 2)) AS key FROM records", ("CAST(1e3 AS decimal(9, 2)) AS key",), ""),
        ("SELECT X'1F' AS key FROM records", ("X '1F' AS key",), ""),
    ],
)  # fmt: skip
def test_what_can_be_used(text: str, changing: tuple[str, ...], condition: str) -> None:
    query = parse_query(text)
    assert (query.changing, query.condition) == (changing, condition)


@pytest.mark.parametrize(
    ("written", "alias"),
    [
        *(("AS `r`", "r"), ("`R`", "R"), ("AS `my r`", "my r"), ("AS `a``b`", "a`b")),
        *(("AS `left`", "left"), ("`using`", "using"), ("r", "r"), ("", "records")),
    ],
)
def test_an_alias_is_a_name_without_its_backticks(written: str, alias: str) -> None:
    of = f"`{alias.replace('`', '``')}`"
    query = parse_query(f"SELECT {of}.key, {of}.*, upper({of}.value) AS value FROM records {written} WHERE true")
    assert query.alias == alias
    assert query.changing == (f"upper({of}.value) AS value",)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "it must be SELECT"),
        ("DROP TABLE records", "it must be SELECT"),
        ("SELECT key", "it must be SELECT"),
        ("SELECT FROM records", "it must be SELECT"),
        ("SELECT key FROM other", "FROM records"),
        ("SELECT key FROM records, records", "only WHERE can follow"),
        ("SELECT key FROM records r JOIN records s", "joins"),
        ("SELECT key FROM records WHERE key IN (SELECT value FROM records)", "subqueries"),
        ("SELECT (FROM text.`/etc/hostname`) AS value FROM records", "subqueries"),
        ("SELECT key FROM records WHERE key IN (FROM text.`/etc/hostname`)", "subqueries"),
        ("SELECT key FROM records WHERE exists(FROM text.`/etc/hostname`)", "subqueries"),
        ("SELECT (REDUCE value USING 'id' AS a FROM records) AS value FROM records", "subqueries"),
        ("SELECT (MAP 1. USING 'id' AS a FROM records) AS value FROM records", "subqueries"),
        ("SELECT key FROM records WHERE true |> DROP value", "pipes"),
        ("SELECT count(*) FROM records GROUP BY key", "aggregates"),
        ("SELECT key FROM records ORDER BY key", "ORDER BY"),
        ("SELECT key FROM records LIMIT 1", "LIMIT"),
        ("SELECT DISTINCT key FROM records", "DISTINCT"),
        ("SELECT key FROM records UNION ALL SELECT key FROM records", "UNION"),
        ("SELECT sum(offset) OVER (PARTITION BY topic) AS value FROM records", "windows"),
        ("SELECT key FROM records WHERE", "its WHERE"),
        ("SELECT key, FROM records", "a column is empty"),
        ("SELECT (key FROM records", "is not closed"),
        ("SELECT key) FROM records", "no opening bracket"),
        ("SELECT 'key FROM records", "is not closed"),
        ("SELECT key FROM records; SELECT 1 FROM records", "single query"),
        ("SELECT key FROM records WHERE rand() > 0.5", "rand is not supported"),
        ("SELECT uuid() AS key FROM records", "uuid is not supported"),
        ("SELECT CAST(now() AS string) AS value FROM records", "now is not supported"),
        ("SELECT current_timestamp AS timestamp FROM records", "current_timestamp is not supported"),
        ("SELECT CAST(unix_timestamp() AS string) AS value FROM records", "unix_timestamp is not supported"),
        ("SELECT CAST(`unix_timestamp`() AS string) AS value FROM records", "unix_timestamp is not supported"),
        ("SELECT `current_timestamp`() AS timestamp FROM records", "current_timestamp is not supported"),
        ("SELECT `Current_Timestamp` AS timestamp FROM records", "current_timestamp is not supported"),
        ("SELECT `user` AS key FROM records", "user is not supported"),
        ("SELECT session_user AS key FROM records", "session_user is not supported"),
        ("SELECT key FROM records WHERE system.builtin.rand() > 0.5", "rand is not supported"),
        ("SELECT key FROM records WHERE `system`.`builtin`.`rand` /* so */ () > 0.5", "rand is not supported"),
        ("SELECT IDENTIFIER('now')() AS timestamp FROM records", "identifier is not supported"),
        ("SELECT timestamp'now' AS timestamp FROM records", "changes with time"),
        ("SELECT CAST('today' AS timestamp) AS timestamp FROM records", "changes with time"),
        ("SELECT `to_timestamp`('today') AS timestamp FROM records", "changes with time"),
    ],
)
def test_what_is_refused_and_why(text: str, reason: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_query(text)
    assert reason in refused.value.message
    assert refused.value.key == "transform.sql"


@pytest.mark.parametrize("item", ATTACKS)
def test_what_reads_more_than_the_record_or_hides_it_from_the_parser(item: str) -> None:
    for text in (f"SELECT {item} AS value FROM records", f"SELECT key FROM records WHERE {item} = ''"):
        with pytest.raises(ConfigError, match=r"transform\.sql is not usable"):
            parse_query(text)


WORDS = ("'", '"', "`", "r'", 'R"', "\\", "/*", "*/", "--", "\n", "\r", "1e+5", "(", ")", ",", "''", "key")
FRAGMENTS = [*ATTACKS, *WORDS]
QUOTED = re.compile(r"""'(?:\\.|''|[^'\\])*'|"(?:\\.|""|[^"\\])*"|`(?:``|[^`])*`""", re.DOTALL)


@given(st.lists(st.one_of(st.sampled_from(FRAGMENTS), st.text(max_size=5)), max_size=8).map("".join))
def test_any_text_is_refused_or_becomes_one_that_has_one_reading(middle: str) -> None:
    try:
        query = parse_query(f"SELECT {middle} AS value FROM records")
    except ConfigError:
        return
    without_raw = re.sub(r"""\b[rR](?='[^']*[^'\\]?'|"[^"]*[^"\\]?")""", "", query.text)
    # A name in backticks may follow a word, a text in quotes may not: it could be a raw one.
    outside = QUOTED.sub(lambda one: " " if one[0][0] == "`" else "''", without_raw)
    assert outside.isascii() and not re.search(r"--|/\*|[`$\\]|\w'", outside)
    assert outside.upper().split().count("SELECT") == 1
    assert parse_query(query.text) == query


@pytest.mark.parametrize(
    ("items", "routes"),
    [
        ("concat(topic, '.x') AS topic", True),
        ("key, IF(value IS NULL, 'gone', topic) `topic`", True),
        ("upper(value) AS value, topic", False),
        ("records.topic, concat(topic) AS key -- AS topic", False),
        ("*", False),
    ],
)
def test_whether_it_sends_records_elsewhere(items: str, routes: bool) -> None:
    assert parse_query(f"SELECT {items}\n FROM records").routes is routes
