"""``transform.sql`` taken apart: its columns and its condition, and what may not stand in it. Pure.

The engine is Spark's: texts are cut at top-level commas and words and otherwise left as they are. A condition becomes a
column beside the others, so that each record stays a row of its own, in its place, and its offset stays known.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from connect.core.errors import ConfigError

KEY: Final = "transform.sql"
VIEW: Final = "records"
#: The columns of a record, by the types that a query sees.
COLUMNS: Final = {
    "topic": "STRING",
    "partition": "INT",
    "offset": "BIGINT",
    "timestamp": "TIMESTAMP",
    "key": "BINARY",
    "value": "BINARY",
    "headers": "ARRAY<STRUCT<key: STRING, value: BINARY>>",
}
#: What a query may change, and what tells where a record is.
CHANGEABLE: Final = ("key", "value", "timestamp", "headers", "topic")
PLACE: Final = ("partition", "offset")

_TOKEN: Final = re.compile(
    r"""(?P<comment>--[^\n]*|/\*.*?\*/)|(?P<space>\s+)|(?P<text>[rR]?(?:'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"))"""
    r"""|(?P<quoted>`(?:``|[^`])*`)|(?P<word>[A-Za-z_][A-Za-z_0-9]*)|(?P<other>.)""",
    re.DOTALL,
)
_OPENING: Final = "([{"
_CLOSING: Final = ")]}"
#: Words that no query may hold: what they begin is no matter of one record.
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
#: Functions whose answer is another one when a record is copied again, though Spark calls them deterministic.
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
#: They need no parentheses where no column is called like them (Spark ``LiteralFunctionResolution``), in backticks too.
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
        """In lower case, empty where it is none."""
        return self.text.lower() if self.kind == "word" else ""

    @property
    def name(self) -> str:
        """What it calls a function or a column, in lower case, backticks or not; empty where it can call none."""
        return self.as_written.lower() if self.kind == "quoted" else self.word

    @property
    def as_written(self) -> str:
        """Its text, without the backticks around it."""
        return self.text[1:-1].replace("``", "`") if self.kind == "quoted" else self.text


@dataclass(frozen=True, slots=True)
class RecordsQuery:
    """``SELECT items FROM records [AS alias] [WHERE condition]``; ``condition`` is empty where there is none.

    ``alias`` is a name as it is: backticks are put around it where it goes into SQL (``sql_alias``).
    """

    text: str
    items: tuple[str, ...]
    alias: str
    condition: str

    @property
    def changing(self) -> tuple[str, ...]:
        """The items that are more than a column as it is."""
        return tuple(item for item in self.items if not self._is_as_it_is(item))

    @property
    def routes(self) -> bool:
        """Whether it gives records another topic."""
        return any(_last_word(item) == "topic" for item in self.changing)

    @property
    def sql_alias(self) -> str:
        """In backticks whatever it is: Spark takes ``left``, ``join`` and others for no alias without them."""
        return "`" + self.alias.replace("`", "``") + "`"

    def _is_as_it_is(self, item: str) -> bool:
        name = _bare(item).removeprefix(_bare(f"{self.alias}."))
        return name == "*" or name in COLUMNS

    def over(self, view: str, changed: tuple[str, ...], kept: tuple[str, ...] = ()) -> str:
        """The query over another view: ``kept`` columns, whether a record stays (``__keep``), and ``changed`` items."""
        keep = f"coalesce(CAST(({self.condition}\n) AS BOOLEAN), false)" if self.condition else "true"
        parts = ", ".join([*kept, f"{keep} AS __keep", *(f"{item}\n" for item in changed)])
        return f"SELECT {parts} FROM {view} AS {self.sql_alias}"


def _bare(text: str) -> str:
    return re.sub(r"[\s`]", "", text).lower()


def _last_word(item: str) -> str:
    return [token.text.strip("`").lower() for token in _tokens(item) if token.kind not in ("space", "comment")][-1]


def parse_query(text: str) -> RecordsQuery:
    """Take a query apart.

    Raises:
        ConfigError: It is no ``SELECT ... FROM records [WHERE ...]``, or holds what a copy could not repeat.
    """
    stripped = text.strip().rstrip(";").strip()
    tokens = [token for token in _tokens(stripped) if token.kind not in ("space", "comment")]
    if not tokens or tokens[0].word != "select":
        raise _refused(f"it has to be SELECT ... FROM {VIEW} [WHERE ...]")
    _refuse(tokens)
    begin = next((at for at, token in enumerate(tokens) if _is_from(tokens, at) and token.depth == 0), None)
    if begin is None or begin == 1:
        raise _refused(f"it has to be SELECT ... FROM {VIEW} [WHERE ...]")
    behind = tokens[begin + 1 :]
    if not behind or behind[0].text.strip("`").lower() != VIEW:
        raise _refused(f"it can only read FROM {VIEW}")
    where = next((at for at, token in enumerate(behind) if token.word == "where" and token.depth == 0), len(behind))
    alias = [token for token in behind[1:where] if token.word != "as"]
    if len(alias) > 1:
        found = " ".join(token.text for token in alias)
        raise _refused(f"behind FROM {VIEW} only a WHERE can follow, not {found}")
    condition = stripped[behind[where].start + len("where") :].strip() if where < len(behind) else ""
    if where < len(behind) and not condition:
        raise _refused("its WHERE says nothing")
    select = stripped[tokens[0].start + len("select") : tokens[begin].start]
    return RecordsQuery(stripped, tuple(_items(select)), alias[0].as_written if alias else VIEW, condition)


def _tokens(text: str) -> Iterator[_SqlToken]:
    depth = 0
    for match in _TOKEN.finditer(text):
        kind, part = match.lastgroup or "other", match.group()
        if part in ("'", '"', "`"):
            raise _refused(f"a {part} is never closed")
        if kind == "other" and part in _CLOSING:
            depth -= 1
        if depth < 0:
            raise _refused(f"a {part} closes nothing")
        yield _SqlToken(kind, part, match.start(), depth)
        if kind == "other" and part in _OPENING:
            depth += 1
    if depth:
        raise _refused("a parenthesis is never closed")


def _is_from(tokens: list[_SqlToken], at: int) -> bool:
    """A ``FROM`` that is not the one of ``IS DISTINCT FROM``."""
    return tokens[at].word == "from" and not (at and tokens[at - 1].word == "distinct")


def _refuse(tokens: list[_SqlToken]) -> None:
    for at, token in enumerate(tokens):
        following = tokens[at + 1].text if at + 1 < len(tokens) else ""
        before = tokens[at - 1] if at else token
        is_name = following == "." or before.text == "." or before.word == "as"
        is_alias = is_name or before.word == VIEW
        if token.text == ";":
            raise _refused("it has to be one query")
        if token.name in _CHANGING and (following == "(" or (token.name in _BARE_CHANGING and not is_alias)):
            _refuse_changing(tokens, at)
        if is_name or not token.word:
            if _MOVING_DAYS.match(token.text) and (before.word in _OF_TIME or _is_time_argument(tokens, at)):
                raise _refused(f"{token.text} is another time when a record is copied again")
            continue
        if token.word == "select" and at:
            raise _refused("subqueries are refused: a record is looked at by itself")
        if token.word == "distinct" and before.word == "select":
            raise _refused("DISTINCT is refused: a record is looked at by itself")
        if token.word == "over" and following == "(":
            raise _refused("windows are refused: a record is looked at by itself")
        if token.word == "identifier" and following == "(":
            raise _refused("IDENTIFIER is refused: what it calls is not known before it runs; write the name itself")
        if token.word in _REFUSED_WORDS and following != "(" and token.depth == 0:
            raise _refused(f"{_REFUSED_WORDS[token.word]} are refused: a record is looked at by itself")


def _refuse_changing(tokens: list[_SqlToken], at: int) -> None:
    """Of a function that is called at ``at``, by whichever of its names."""
    name = tokens[at].name
    if name == "unix_timestamp" and tokens[at + 2].text != ")":
        return  # of a time that is given
    raise _refused(
        f"{name} is refused: a copy that goes on after a crash runs the query again, and has to get the same"
    )


def _is_time_argument(tokens: list[_SqlToken], at: int) -> bool:
    """Whether a text is the first argument of what makes times of texts."""
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
