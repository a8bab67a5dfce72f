"""Parses ``transform.sql`` into columns and a condition, and rejects unsupported queries.

Spark runs the query: the text is split at top-level commas and keywords and otherwise unchanged. The condition becomes
another column, so that each record remains a row, in order, and its offset stays known.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
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
    r"""(?P<comment>--[^\r\n]*+|/\*.*?\*/)|(?P<space>\s+)|(?P<raw>[rR](?:'[^']*+'|"[^"]*+"))"""
    r"""|(?P<text>'(?:\\.|''|[^'\\])*+'|"(?:\\.|""|[^"\\])*+")|(?P<quoted>`(?:``|[^`])*+`)"""
    r"""|(?P<word>[A-Za-z_0-9]+)|(?P<other>.)""",
    re.DOTALL,
)
#: What may be between words and texts. Spark takes other characters for letters of a keyword, a dollar for a quote.
_OTHERS: Final = frozenset("()[]<>=!+-*/%&|^~.,:;")
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
#: Functions that need no parentheses if no column has their name, also in backticks (``LiteralFunctionResolution``).
_BARE: Final = frozenset(("current_timestamp", "current_date", "current_time", "current_user", "session_user", "user"))
#: Begin a query in brackets.
_QUERIES: Final = frozenset(("select", "table", "values"))
#: Functions with a FROM between their arguments. Any other in brackets begins a query, which needs no SELECT.
_WITH_FROM: Final = frozenset(("extract", "trim", "substr", "substring", "overlay"))
_MOVING_DAYS: Final = re.compile(r"""^[rR]?['"]\s*(now|today|tomorrow|yesterday)\b""", re.IGNORECASE)
_OF_TIME: Final = ("date", "timestamp", "timestamp_ntz", "timestamp_ltz")
#: The functions of Spark that a query can call: their result depends on their arguments alone. Left out are those of
#: time, chance, session and user; those that read files or addresses or call Java (``from_avro``, ``from_protobuf``,
#: ``from_xml``, ``reflect``); those of several rows; and all that a later Spark adds.
_FUNCTION_NAMES: Final = """
abs acos acosh add_months aes_decrypt aggregate array array_append array_compact array_contains array_distinct
array_except array_insert array_intersect array_join array_max array_min array_position array_prepend array_remove
array_repeat array_size array_sort array_union arrays_overlap arrays_zip ascii asin asinh assert_true atan atan2 atanh
base64 bigint bin binary bit_count bit_get bit_length boolean bround btrim cardinality cast cbrt ceil ceiling char
char_length character_length chr coalesce collate collation concat concat_ws contains conv convert_timezone cos cosh
cot crc32 csc date date_add date_diff date_format date_from_unix_date date_part date_sub date_trunc dateadd datediff
datepart day dayname dayofmonth dayofweek dayofyear decimal decode degrees double e element_at elt encode endswith
equal_null exists exp expm1 extract factorial filter find_in_set flatten float floor forall format_number
format_string from_base32 from_csv from_json from_unixtime from_utc_timestamp get get_json_object getbit greatest hash
hex hmac hour hypot if ifnull ilike initcap instr int is_valid_utf8 is_valid_variant is_variant_null isnan isnotnull
isnull jaro_winkler_similarity json_array_length json_object_keys last_day lcase least left len length levenshtein
like ln locate log log10 log1p log2 lower lpad ltrim luhn_check make_date make_dt_interval make_interval make_time
make_timestamp make_timestamp_ltz make_timestamp_ntz make_valid_utf8 make_ym_interval map map_concat map_contains_key
map_entries map_filter map_from_arrays map_from_entries map_keys map_values map_zip_with mask md5 minute mod month
monthname months_between named_struct nanvl negative next_day nullif nullifzero nvl nvl2 octet_length overlay
parse_json parse_url pi pmod position positive pow power printf quarter quote radians raise_error reduce regexp
regexp_count regexp_extract regexp_extract_all regexp_instr regexp_like regexp_replace regexp_substr repeat replace
reverse right rint rlike round rpad rtrim schema_of_csv schema_of_json schema_of_variant sec second sentences sequence
sha sha1 sha2 shiftleft shiftright shiftrightunsigned sign signum sin sinh size slice smallint sort_array soundex
space split split_part sqrt startswith str_to_map string substr substring substring_index tan tanh time time_bucket
time_diff time_from_micros time_from_millis time_from_seconds time_to_micros time_to_millis time_to_seconds time_trunc
timestamp timestamp_micros timestamp_millis timestamp_nanos timestamp_seconds timestampadd timestampdiff tinyint
to_base32 to_binary to_char to_csv to_date to_json to_number to_time to_timestamp to_timestamp_ltz to_timestamp_ntz
to_unix_timestamp to_utc_timestamp to_varchar to_variant_object transform transform_keys transform_values translate
trim trunc try_add try_aes_decrypt try_divide try_element_at try_make_interval try_make_timestamp
try_make_timestamp_ltz try_make_timestamp_ntz try_mod try_multiply try_parse_json try_parse_url try_subtract
try_to_binary try_to_date try_to_number try_to_time try_to_timestamp try_url_decode try_validate_utf8
try_variant_array_append try_variant_get try_variant_insert try_variant_set typeof ucase unbase64 unhex unix_date
unix_micros unix_millis unix_nanos unix_seconds unix_timestamp upper url_decode url_encode validate_utf8
variant_array_append variant_delete variant_get variant_insert variant_set variant_strip_nulls weekday weekofyear
width_bucket xxhash64 year zeroifnull zip_with
"""
#: Other words that a bracket can follow: keywords and types.
_WORDS_BEFORE_BRACKETS: Final = """
all and any array between both case character dec div else escape for from ilike in interval is leading like not
numeric or regexp rlike select some struct then trailing try_cast varchar when where
"""
_FUNCTIONS: Final = frozenset(_FUNCTION_NAMES.split())
_BEFORE_BRACKETS: Final = frozenset(_WORDS_BEFORE_BRACKETS.split())


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
    """``SELECT items FROM records [AS alias] [WHERE condition]``; ``condition`` is empty if there is no WHERE. ``text``
    is without comments; ``alias`` is without backticks."""

    text: str
    items: tuple[str, ...]
    alias: str
    condition: str

    @property
    def changing(self) -> tuple[str, ...]:
        """The items that are not just an unchanged column."""
        own = _bare(f"{self.alias}.")
        return tuple(item for item in self.items if _bare(item).removeprefix(own) not in ("*", *COLUMNS))

    @property
    def routes(self) -> bool:
        """Whether the query changes the topic of records."""
        return any(_last_word(item) == "topic" for item in self.changing)


def _bare(text: str) -> str:
    return re.sub(r"[\s`]", "", text).lower()


def _last_word(item: str) -> str:
    return [token.text.strip("`").lower() for token in _tokens(item) if token.kind not in ("space", "comment")][-1]


def parse_query(text: str) -> RecordsQuery:
    """Parse a query. Raises ConfigError if it is not ``SELECT ... FROM records [WHERE ...]``, or calls another function
    than those of this module, whose results are repeatable and depend on the record alone."""
    stripped = _unambiguous(text).strip().rstrip(";").strip()
    tokens = [token for token in _tokens(stripped) if token.kind not in ("space", "comment")]
    if not tokens or tokens[0].word != "select":
        raise refused(f"it must be SELECT ... FROM {VIEW} [WHERE ...]")
    _refuse(tokens)
    for at, token in enumerate(tokens[1:]):
        if token.text == "(":
            _refuse_call(tokens, at)
    begin = next((at for at, token in enumerate(tokens) if _is_from(tokens, at) and token.depth == 0), None)
    if begin is None or begin == 1:
        raise refused(f"it must be SELECT ... FROM {VIEW} [WHERE ...]")
    behind = tokens[begin + 1 :]
    if not behind or behind[0].text.strip("`").lower() != VIEW:
        raise refused(f"it can only read FROM {VIEW}")
    where = next((at for at, token in enumerate(behind) if token.word == "where" and token.depth == 0), len(behind))
    alias = [token for token in behind[1:where] if token.word != "as"]
    if len(alias) > 1:
        found = " ".join(token.text for token in alias)
        raise refused(f"only WHERE can follow FROM {VIEW}, not {found}")
    condition = stripped[behind[where].start + len("where") :].strip() if where < len(behind) else ""
    if where < len(behind) and not condition:
        raise refused("its WHERE is empty")
    select = stripped[tokens[0].start + len("select") : tokens[begin].start]
    return RecordsQuery(stripped, tuple(_items(select)), alias[0].as_written if alias else VIEW, condition)


def _unambiguous(text: str) -> str:
    """Return the text without what Spark could divide into other tokens than :func:`_tokens`: comments, which it
    nests, continues and ends by rules of its own, and a text that follows a letter."""
    out = ""
    for token in _tokens(text):
        is_blank = token.kind in ("comment", "space")
        if (is_blank and not out.endswith(" ")) or (token.kind in ("raw", "text") and re.search(r"\w\Z", out)):
            out += " "
        out += "" if is_blank else token.text
    return out


def _tokens(text: str) -> Iterator[_SqlToken]:
    depth = 0
    for match in _TOKEN.finditer(text):
        kind, part = match.lastgroup or "other", match.group()
        if part in ("'", '"', "`") or (text.startswith("/*", match.start()) and kind != "comment"):
            raise refused(f"a {text[match.start() : match.start() + 2].strip()} is not closed")
        if kind == "raw" and part[-2] == "\\":
            raise refused(f"{part} ends in a backslash; write it without the {part[0]}, and each backslash twice")
        if kind == "other" and part not in _OTHERS:
            raise refused(f"{part} can only be used within quotes")
        if kind == "other" and part in _CLOSING:
            depth -= 1
        if depth < 0:
            raise refused(f"a {part} has no opening bracket")
        yield _SqlToken(kind, part, match.start(), depth)
        if kind == "other" and part in _OPENING:
            depth += 1
    if depth:
        raise refused("a bracket is not closed")


def _is_from(tokens: list[_SqlToken], at: int) -> bool:
    """Return whether the token is a ``FROM`` that does not belong to ``IS DISTINCT FROM``."""
    return tokens[at].word == "from" and not (at and tokens[at - 1].word == "distinct")


def _refuse(tokens: list[_SqlToken]) -> None:
    brackets: list[str] = []
    for at, token in enumerate(tokens):
        following = tokens[at + 1].text if at + 1 < len(tokens) else ""
        before = tokens[at - 1] if at else token
        if token.kind == "other" and token.text in _OPENING:
            brackets.append(before.name)
        elif token.kind == "other" and token.text in _CLOSING:
            brackets.pop()
        # Before names, because a number may end in a dot. USING names a program that Spark would run.
        if token.word == "using" or (brackets and _is_from(tokens, at) and brackets[-1] not in _WITH_FROM):
            raise refused("subqueries are not supported: each record is transformed by itself")
        if token.text == "|" and following == ">":
            raise refused("pipes are not supported: each record is transformed by itself")
        is_name = following == "." or before.text == "." or before.word == "as"
        is_alias = is_name or before.word == VIEW
        if token.text == ";":
            raise refused("it must be a single query")
        if token.word in _QUERIES and at and before.text != "." and before.word != "as":
            raise refused("subqueries are not supported: each record is transformed by itself")
        if token.name in _BARE and not is_alias:
            raise _refused_call(token.name)
        if is_name or not token.word:
            if _MOVING_DAYS.match(token.text) and (before.word in _OF_TIME or _is_time_argument(tokens, at)):
                raise refused(f"{token.text} changes with time, so a record that is copied again may differ")
            continue
        if token.word == "distinct" and before.word == "select":
            raise refused("DISTINCT is not supported: each record is transformed by itself")
        if token.word == "over" and following == "(":
            raise refused("windows are not supported: each record is transformed by itself")
        if token.word in _REFUSED_WORDS and following != "(" and token.depth == 0:
            raise refused(f"{_REFUSED_WORDS[token.word]}: not supported, each record is transformed by itself")


def _refuse_call(tokens: list[_SqlToken], at: int) -> None:
    """Reject a call of a function that is not known to be safe, by the name at ``at``, before a bracket."""
    name = tokens[at].name
    if not name and tokens[at].kind == "other":
        return  # a bracket of an expression
    path: list[str] = []
    begin = at
    while begin >= 2 and tokens[begin - 1].text == ".":
        begin -= 2
        path.insert(0, tokens[begin].name)
    is_builtin = name in _FUNCTIONS and path in ([], ["builtin"], ["system", "builtin"])
    if not is_builtin and (path or name not in _BEFORE_BRACKETS):
        raise _refused_call(name or tokens[at].text)
    after = next(token.text for token in tokens[at + 1 :] if token.text != "(")
    if name == "unix_timestamp" and after == ")":
        raise _refused_call(name)


def _refused_call(name: str) -> ConfigError:
    return refused(
        f"{name} is not supported: a query can only call functions whose result depends on the record alone, because "
        "it runs again after a crash (docs/transforms.md)"
    )


def _is_time_argument(tokens: list[_SqlToken], at: int) -> bool:
    """Return whether the token is the first argument of a function that converts text to a time."""
    return at >= 2 and tokens[at - 1].text == "(" and tokens[at - 2].name in (
        "cast", "try_cast", "to_date", "to_timestamp", "try_to_timestamp", "try_to_date", *_OF_TIME
    )  # fmt: skip


def _items(select: str) -> Iterator[str]:
    commas = [one.start for one in _tokens(select) if one.text == "," and one.depth == 0 and one.kind == "other"]
    for begin, end in pairwise([-1, *commas, len(select)]):
        if not (item := select[begin + 1 : end].strip()):
            raise refused("a column is empty")
        yield item


def refused(reason: str) -> ConfigError:
    """Return the error of a query that cannot be used."""
    return ConfigError(f"{KEY} is not usable: {reason}", KEY)
