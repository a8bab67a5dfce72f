"""Connectors that send the lines of a file through transforms and converters; the same for Java's worker and for us."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

_PACKAGE: Final = "org.apache.kafka.connect."
_JSON: Final = f"{_PACKAGE}json.JsonConverter"
_STRING: Final = f"{_PACKAGE}storage.StringConverter"
_SIMPLE: Final = f"{_PACKAGE}storage.SimpleHeaderConverter"

Step = tuple[str, Mapping[str, str]]


@dataclass(frozen=True)
class Case:
    """``lines`` go through ``steps`` (a transform's name and settings) and ``converters``; ``name`` is the topic."""

    name: str
    lines: Sequence[str]
    steps: Sequence[Step] = ()
    converters: Mapping[str, str] = field(default_factory=lambda: {"value.converter": _STRING})

    @property
    def text(self) -> bytes:
        return "".join(f"{line}\n" for line in self.lines).encode()

    def props(self, file: str) -> dict[str, str]:
        props = {
            "name": self.name,
            "connector.class": "FileStreamSource",
            "file": file,
            "topic": self.name,
            "errors.tolerance": "all",
            "key.converter": _JSON,
            "key.converter.schemas.enable": "true",
            "header.converter": _SIMPLE,
            **self.converters,
            "transforms": ",".join(f"t{at}" for at in range(len(self.steps))),
        }
        for at, (transform, settings) in enumerate(self.steps):
            props[f"transforms.t{at}.type"] = f"{_PACKAGE}transforms.{transform}"
            props.update({f"transforms.t{at}.{key}": value for key, value in settings.items()})
        return props


JSON: Final = {"value.converter": _JSON}
PLAIN_JSON: Final = {"value.converter": _JSON, "value.converter.schemas.enable": "false"}
JSON_HEADERS: Final = {"value.converter": _STRING, "header.converter": _JSON, "header.converter.schemas.enable": "true"}

TEXTS: Final = (
    "plain",
    "",
    'with "quotes" and \\ and \t',
    "umlaut äöü €",
    "𝄞 beyond",
    "\x01\x1f\x7f",
    "null",
    "  blank  ",
)
NUMBERS: Final = (
    "0", "-1", "+5", "127", "128", "-129", "32768", "3000000000", "9223372036854775807", "9223372036854775808",
    "1.5", "-0.0", " 7 ", "1e3", "1e10", "0.001", "0.00099", "123456.789", "1e7", "9999999", "4.9e-324",
    "3.4e38", "1e39", "1e400", "NaN", "Infinity", "-Infinity", "1f", "0x10", "1_000", "true", "TRUE", "text", "",
)  # fmt: skip
LITERALS: Final = (
    "null", "true", "false", "TRUE", "true}", "text", "12", "-128", "128", "32768", "2147483648", "9223372036854775808",
    "1.5", "0.1", "-0.25", "1e3", "1.5e300", "1e400", "+7", "-", "1.", ".5", "1_000", "NaN",
    "2019-08-23", "14:34:54.346Z", "2019-08-23T14:34:54.346Z", "2019-13-45", "2019-8-234",
    "2019-08-2x", "99:99:99.999Z",
    "[]", "[1,300]", "[1, 2.5]", "[1.5,1e300]", '["a","b,c"]', '["a" , "b"]', "[true,3]", "[1,null]", "[null]",
    "[[1],[300]]", "[[1],[\"a\"]]", "[1,,2]", "[1,2", "[1 2]", "[a]", '["2019-08-23"]', "[1,2,]",
    "{}", '{"a":1}', '{"a":1,"b":300}', '{"a":null}', '{"a":{"b":[1]}}', '{"a":1 "b":2}', "{1:2}", "{a:1}", '{"a"}',
    '"quoted"', '"esc\\"aped"', "a\\:b", "a:b", "key=value", "[", "{", "[[[[", '["unclosed]', "2019-08-23 and more",
)  # fmt: skip
#: Of these literals Java's JsonConverter raises a NullPointerException or a ClassCastException.
JAVA_FAILS_ON: Final = ("{}", "[[1],[300]]")
DATES: Final = (
    "2020-02-09 15:04:05.067", "2020-2-9 5:4:5.7", "2020-14-32 25:61:61.1000", "1969-12-31 23:59:59.999",
    "1600-01-01 00:00:00.000", "2020-02-09", "text",
    "2020-02-09 15:04:05.067 and more",
)  # fmt: skip
READ: Final[Step] = ("TimestampConverter$Value", {"target.type": "Timestamp", "format": "yyyy-MM-dd HH:mm:ss.SSS"})
SHAPE: Final[Sequence[Step]] = (
    ("HoistField$Value", {"field": "line"}),
    ("InsertField$Value", {"static.field": "site!", "static.value": "eu", "topic.field": "topic"}),
)


def _written(pattern: str) -> Sequence[Step]:
    return READ, ("TimestampConverter$Value", {"target.type": "string", "format": pattern})


def _cases() -> Iterator[Case]:
    yield Case("string", TEXTS)
    yield Case("json", TEXTS, (), JSON)
    yield Case("plain-json", TEXTS, (), PLAIN_JSON)
    for type_ in ("int8", "int16", "int32", "int64", "float32", "float64", "boolean", "string"):
        yield Case(f"cast-{type_}", NUMBERS, [("Cast$Value", {"spec": type_})], JSON)
        yield Case(f"cast-{type_}-string", NUMBERS, [("Cast$Value", {"spec": type_})])
    for converter, type_ in (
        ("Short", "int16"),
        ("Integer", "int32"),
        ("Long", "int64"),
        ("Float", "float32"),
        ("Double", "float64"),
        ("Boolean", "boolean"),
    ):
        settings = {"value.converter": f"{_PACKAGE}converters.{converter}Converter"}
        yield Case(f"bytes-{converter}", NUMBERS, [("Cast$Value", {"spec": type_})], settings)
        yield Case(f"refused-{converter}", NUMBERS[:2], (), settings)
    for inner, outer in (
        ("float64", "int8"),
        ("float64", "int64"),
        ("int64", "int16"),
        ("float64", "boolean"),
        ("float64", "float32"),
        ("boolean", "int32"),
    ):
        steps = [("Cast$Value", {"spec": inner}), ("Cast$Value", {"spec": outer})]
        yield Case(f"cast-{inner}-{outer}", NUMBERS, steps, PLAIN_JSON)
    inserted = [("InsertHeader", {"header": f"h{at}", "value.literal": text}) for at, text in enumerate(LITERALS)]
    yield Case("headers-text", ["line"], inserted)
    for at, (header, text) in enumerate(zip(inserted, LITERALS, strict=True)):
        if text not in JAVA_FAILS_ON:
            yield Case(f"header-{at}", ["line"], [header], JSON_HEADERS)
    yield Case("drop-headers", ["line"], [*inserted[:4], ("DropHeaders", {"headers": "h1,h2"})])
    yield Case("hoisted", TEXTS, SHAPE, JSON)
    yield Case("hoisted-plain", TEXTS, SHAPE, PLAIN_JSON)
    yield Case("hoisted-string", TEXTS, SHAPE)
    nested: Sequence[Step] = (*SHAPE, ("HoistField$Value", {"field": "outer"}))
    yield Case("flattened", TEXTS[:2], [*nested, ("Flatten$Value", {"delimiter": "_"})], JSON)
    yield Case("extracted", TEXTS[:2], [*nested, ("ExtractField$Value", {"field": "outer"})], JSON)
    path = {"field": "outer.line", "field.syntax.version": "V2"}
    yield Case("extracted-path", TEXTS[:2], [*nested, ("ExtractField$Value", path)], JSON)
    yield Case("extracted-unknown", TEXTS[:2], [*nested, ("ExtractField$Value", {"field": "nope"})], JSON)
    yield Case(
        "replaced", TEXTS[:2], [*SHAPE, ("ReplaceField$Value", {"exclude": "topic", "renames": "line:text"})], JSON
    )
    yield Case("included", TEXTS[:2], [*SHAPE, ("ReplaceField$Value", {"include": "line"})], JSON)
    yield Case("masked", TEXTS[:2], [*SHAPE, ("MaskField$Value", {"fields": "line"})], JSON)
    yield Case(
        "mask-replaced", TEXTS[:2], [*SHAPE, ("MaskField$Value", {"fields": "line", "replacement": "***"})], JSON
    )
    yield Case(
        "mask-number",
        NUMBERS,
        [("Cast$Value", {"spec": "int8"}), *SHAPE, ("MaskField$Value", {"fields": "line", "replacement": "300"})],
        JSON,
    )
    yield Case("keyed", TEXTS[:3], [*SHAPE, ("ValueToKey", {"fields": "site,line"})], JSON)
    yield Case(
        "key-extracted",
        TEXTS[:3],
        [*SHAPE, ("ValueToKey", {"fields": "line"}), ("ExtractField$Key", {"field": "line"})],
        JSON,
    )
    yield Case("key-unknown", TEXTS[:2], [*SHAPE, ("ValueToKey", {"fields": "nope"})], JSON)
    moved = {"fields": "line,site", "headers": "l,s", "operation": "move"}
    yield Case("header-moved", TEXTS, [*SHAPE, ("HeaderFrom$Value", moved)], JSON)
    yield Case(
        "header-copied",
        TEXTS,
        [*SHAPE, ("HeaderFrom$Value", {**moved, "operation": "copy"})],
        {**JSON, **JSON_HEADERS, **JSON},
    )
    yield Case("metadata-struct", TEXTS[:2], [*SHAPE, ("SetSchemaMetadata$Value", {"schema.name": "n"})], JSON)
    yield Case("cast-fields", NUMBERS, [*SHAPE, ("Cast$Value", {"spec": "line:float64"})], JSON)
    yield Case("not-a-struct", TEXTS[:2], [("MaskField$Value", {"fields": "a"})], JSON)
    for target in ("Timestamp", "Date", "Time", "unix"):
        yield Case(f"date-{target}", DATES, [READ, ("TimestampConverter$Value", {"target.type": target})], JSON)
        yield Case(f"date-{target}-string", DATES, [READ, ("TimestampConverter$Value", {"target.type": target})])
    for precision in ("seconds", "microseconds", "nanoseconds"):
        to_unix = ("TimestampConverter$Value", {"target.type": "unix", "unix.precision": precision})
        yield Case(f"date-{precision}", DATES, [READ, to_unix], JSON)
    yield Case("date-cast", DATES, [READ, ("Cast$Value", {"spec": "string"})])
    for at, pattern in enumerate(
        (
            "yyyyMMdd",
            "yy/M/d",
            "EEE, d MMM yyyy HH:mm:ss Z",
            "EEEE MMMM z",
            "h 'o''clock' a",
            "KK kk DDD F u",
            "SSSSSS",
            "yyyyy G",
            "XXX",
        )
    ):
        yield Case(f"date-pattern-{at}", DATES[:5], _written(pattern))
    for at, pattern in enumerate(("yyyyMMdd", "yyMMdd", "yyyyMMddHHmm", "yyyyD", "MMMyyyy", "h a")):
        texts = (
            "20200209",
            "200209",
            "202002",
            "2020020915",
            "202002091504",
            "2020400",
            "Feb2020",
            "february2020",
            "3 pm",
            "12 AM",
            "text",
        )
        reading = ("TimestampConverter$Value", {"target.type": "unix", "format": pattern})
        yield Case(f"date-reading-{at}", texts, [reading], PLAIN_JSON)


CASES: Final = tuple(_cases())
