"""Parses ``transform.sql`` into columns and a condition, and rejects unsupported queries.

Spark runs the query: the text is split at top-level commas and keywords and otherwise unchanged. The condition becomes
another column, so that each record remains a row, in order, and its offset stays known.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from connect.core.errors import ConfigError

KEY: Final = "transform.sql"
VIEW: Final = "records"
#: The columns of a record and their SQL types.
COLUMNS: Final = {
    "topic": "STRING",
    "partition": "INT",
    "offset": "BIGINT",
    "timestamp": "TIMESTAMP",
    "key": "BINARY",
    "value": "BINARY",
    "headers": "ARRAY<STRUCT<key: STRING, value: BINARY>>",
}
#: The columns that a query may change, and the columns that identify a record.
CHANGEABLE: Final = ("key", "value", "timestamp", "headers", "topic")
PLACE: Final = ("partition", "offset")

_TOKEN: Final = re.compile(
    r"""(?P<comment>--[^\n]*|/\*.*?\*/)|(?P<space>\s+)|(?P<text>[rR]?(?:'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"))"""
    r"""|(?P<quoted>`(?:``|[^`])*`)|(?P<word>[A-Za-z_][A-Za-z_0-9]*)|(?P<other>.)""",
    re.DOTALL,
)
_OPENING: Final = "([{"
_CLOSING: Final = ")]}"
#: Words that are rejected at top level, because they concern more than one record.
_REFUSED_WORDS: Final = {
    "join": "joins",
    "union": "UNION",
    "intersect": "INTERSECT",
    "except": "EXCEPT",
    "group": "aggregates",
    "having": "aggregates",
    "order": "ORDER BY",
    "sort": "SORT BY",
    "cluster": "CLUSTER BY",
    "distribute": "DISTRIBUTE BY",
    "limit": "LIMIT",
    "window": "windows",
    "lateral": "LATERAL",
    "pivot": "PIVOT",
    "unpivot": "UNPIVOT",
    "tablesample": "TABLESAMPLE",
}
#: Functions whose result may differ when a record is copied again; Spark calls some of them deterministic.
_CHANGING: Final = frozenset(
    (
        "now",
        "current_timestamp",
        "localtimestamp",
        "current_date",
        "curdate",
        "current_time",
        "curtime",
        "current_timezone",
        "unix_timestamp",
        "current_user",
        "session_user",
        "user",
        "current_catalog",
        "current_database",
        "current_schema",
        "version",
        "rand",
        "random",
        "randn",
        "uuid",
        "shuffle",
        "randstr",
        "uniform",
        "monotonically_increasing_id",
        "spark_partition_id",
        "input_file_name",
        "input_file_block_start",
        "input_file_block_length",
        "aes_encrypt",
        "reflect",
        "java_method",
        "try_reflect",
    )
)
#: Functions that need no parentheses if no column has their name, also in backticks (``LiteralFunctionResolution``).
_BARE_CHANGING: Final = frozenset(
    ("current_timestamp", "current_date", "current_time", "current_user", "session_user", "user")
)
_MOVING_DAYS: Final = re.compile(r"""^[rR]?['"]\s*(now|today|tomorrow|yesterday)\b""", re.IGNORECASE)
_OF_TIME: Final = ("date", "timestamp", "timestamp_ntz", "timestamp_ltz")


@dataclass(frozen=True, slots=True)
class _SqlToken:
    kind: str
    text: str
    start: int
    depth: int

    @property
    def word(self) -> str:
        """The word in lower case; empty if the token is not a word."""
        return self.text.lower() if self.kind == "word" else ""

    @property
    def name(self) -> str:
        """The name of a function or column in lower case, without backticks; empty if the token cannot be a name."""
        return self.as_written.lower() if self.kind == "quoted" else self.word

    @property
    def as_written(self) -> str:
        """The text without surrounding backticks."""
        return self.text[1:-1].replace("``", "`") if self.kind == "quoted" else self.text


@dataclass(frozen=True, slots=True)
class RecordsQuery:
    """``SELECT items FROM records [AS alias] [WHERE condition]``; ``condition`` is empty if there is no WHERE.

    ``alias`` is without backticks; ``sql_alias`` has them.
    """

    text: str
    items: tuple[str, ...]
    alias: str
    condition: str

    @property
    def changing(self) -> tuple[str, ...]:
        """The items that are not just an unchanged column."""
        return tuple(item for item in self.items if not self._is_as_it_is(item))

    @property
    def routes(self) -> bool:
        """Whether the query changes the topic of records."""
        return any(_last_word(item) == "topic" for item in self.changing)

    @property
    def sql_alias(self) -> str:
        """The alias in backticks, without which Spark does not accept aliases such as ``left`` and ``join``."""
        return "`" + self.alias.replace("`", "``") + "`"

    def _is_as_it_is(self, item: str) -> bool:
        name = _bare(item).removeprefix(_bare(f"{self.alias}."))
        return name == "*" or name in COLUMNS

    def over(self, view: str, changed: tuple[str, ...], kept: tuple[str, ...] = ()) -> str:
        """Return the query on another view: ``kept`` columns, ``__keep`` (the condition), and ``changed`` items."""
        keep = f"coalesce(CAST(({self.condition}\n) AS BOOLEAN), false)" if self.condition else "true"
        parts = ", ".join([*kept, f"{keep} AS __keep", *(f"{item}\n" for item in changed)])
        return f"SELECT {parts} FROM {view} AS {self.sql_alias}"


def _bare(text: str) -> str:
    return re.sub(r"[\s`]", "", text).lower()


def _last_word(item: str) -> str:
    return [token.text.strip("`").lower() for token in _tokens(item) if token.kind not in ("space", "comment")][-1]


def parse_query(text: str) -> RecordsQuery:
    """Parse a query.

    Raises:
        ConfigError: The query is not ``SELECT ... FROM records [WHERE ...]``, or its results may not be repeatable.
    """
    stripped = text.strip().rstrip(";").strip()
    tokens = [token for token in _tokens(stripped) if token.kind not in ("space", "comment")]
    if not tokens or tokens[0].word != "select":
        raise _refused(f"it must be SELECT ... FROM {VIEW} [WHERE ...]")
    _refuse(tokens)
    begin = next((at for at, token in enumerate(tokens) if _is_from(tokens, at) and token.depth == 0), None)
    if begin is None or begin == 1:
        raise _refused(f"it must be SELECT ... FROM {VIEW} [WHERE ...]")
    behind = tokens[begin + 1 :]
    if not behind or behind[0].text.strip("`").lower() != VIEW:
        raise _refused(f"it can only read FROM {VIEW}")
    where = next((at for at, token in enumerate(behind) if token.word == "where" and token.depth == 0), len(behind))
    alias = [token for token in behind[1:where] if token.word != "as"]
    if len(alias) > 1:
        found = " ".join(token.text for token in alias)
        raise _refused(f"only WHERE can follow FROM {VIEW}, not {found}")
    condition = stripped[behind[where].start + len("where") :].strip() if where < len(behind) else ""
    if where < len(behind) and not condition:
        raise _refused("its WHERE is empty")
    select = stripped[tokens[0].start + len("select") : tokens[begin].start]
    return RecordsQuery(stripped, tuple(_items(select)), alias[0].as_written if alias else VIEW, condition)


def _tokens(text: str) -> Iterator[_SqlToken]:
    depth = 0
    for match in _TOKEN.finditer(text):
        kind, part = match.lastgroup or "other", match.group()
        if part in ("'", '"', "`"):
            raise _refused(f"a {part} is not closed")
        if kind == "other" and part in _CLOSING:
            depth -= 1
        if depth < 0:
            raise _refused(f"a {part} has no opening bracket")
        yield _SqlToken(kind, part, match.start(), depth)
        if kind == "other" and part in _OPENING:
            depth += 1
    if depth:
        raise _refused("a bracket is not closed")


def _is_from(tokens: list[_SqlToken], at: int) -> bool:
    """Return whether the token is a ``FROM`` that does not belong to ``IS DISTINCT FROM``."""
    return tokens[at].word == "from" and not (at and tokens[at - 1].word == "distinct")


def _refuse(tokens: list[_SqlToken]) -> None:
    for at, token in enumerate(tokens):
        following = tokens[at + 1].text if at + 1 < len(tokens) else ""
        before = tokens[at - 1] if at else token
        is_name = following == "." or before.text == "." or before.word == "as"
        is_alias = is_name or before.word == VIEW
        if token.text == ";":
            raise _refused("it must be a single query")
        if token.name in _CHANGING and (following == "(" or (token.name in _BARE_CHANGING and not is_alias)):
            _refuse_changing(tokens, at)
        if is_name or not token.word:
            if _MOVING_DAYS.match(token.text) and (before.word in _OF_TIME or _is_time_argument(tokens, at)):
                raise _refused(f"{token.text} changes with time, so a record that is copied again may differ")
            continue
        if token.word == "select" and at:
            raise _refused("subqueries are not supported: each record is transformed by itself")
        if token.word == "distinct" and before.word == "select":
            raise _refused("DISTINCT is not supported: each record is transformed by itself")
        if token.word == "over" and following == "(":
            raise _refused("windows are not supported: each record is transformed by itself")
        if token.word == "identifier" and following == "(":
            raise _refused("IDENTIFIER is not supported: its result is known only when it runs; write the name itself")
        if token.word in _REFUSED_WORDS and following != "(" and token.depth == 0:
            raise _refused(f"{_REFUSED_WORDS[token.word]}: not supported, each record is transformed by itself")


def _refuse_changing(tokens: list[_SqlToken], at: int) -> None:
    """Reject the call at ``at`` of a function whose result may change."""
    name = tokens[at].name
    if name == "unix_timestamp" and tokens[at + 2].text != ")":
        return  # because it has an argument
    raise _refused(f"{name} is not supported: after a crash the query runs again and must return the same result")


def _is_time_argument(tokens: list[_SqlToken], at: int) -> bool:
    """Return whether the token is the first argument of a function that converts text to a time."""
    return at >= 2 and tokens[at - 1].text == "(" and tokens[at - 2].name in (
        "cast", "try_cast", "to_date", "to_timestamp", "try_to_timestamp", "try_to_date", *_OF_TIME
    )  # fmt: skip


def _items(select: str) -> Iterator[str]:
    begin = 0
    for token in _tokens(select):
        if token.text == "," and token.depth == 0 and token.kind == "other":
            yield _item(select[begin : token.start])
            begin = token.start + 1
    yield _item(select[begin:])


def _item(text: str) -> str:
    if not text.strip():
        raise _refused("a column is empty")
    return text.strip()


def _refused(reason: str) -> ConfigError:
    return ConfigError(f"{KEY} is not usable: {reason}", KEY)
