"""Settings as data, against what a running Kafka 4.3 answers to the same values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connect.core.config.config_def import (
    REQUIRED,
    AtLeast,
    ConfigDef,
    Importance,
    InvalidValue,
    OneOf,
    Password,
    PluginClass,
    Setting,
    Type,
    ValidList,
    Value,
    convert,
    split_list,
)
from connect.core.config.validation import connector_name, unique_aliases
from connect.core.errors import ConfigError

CONFIG = ConfigDef.of(
    Setting("name", Type.STRING, "x", "The name.", connector_name, Importance.HIGH),
    Setting("alias", Type.STRING, "us", "An alias."),
    Setting("topics", Type.LIST, (".*",), "Topics.", ValidList(), Importance.HIGH),
    Setting("formats", Type.LIST, ("legacy",), "Formats.", ValidList(("legacy", "new"), may_be_empty=False)),
    Setting("transforms", Type.LIST, (), "Aliases.", unique_aliases),
    Setting("tasks.max", Type.INT, 1, "Most tasks.", AtLeast(1)),
    Setting("factor", Type.SHORT, 3, "Factor."),
    Setting("ratio", Type.DOUBLE, 0.8, "Ratio.", AtLeast(0.5, 1.0)),
    Setting("enabled", Type.BOOLEAN, True, "On."),
    Setting("location", Type.STRING, "source", "Where.", OneOf(("source", "target"))),
    Setting("protocol", Type.STRING, "SSL", "How.", OneOf(("SSL", "PLAINTEXT"), any_case=True)),
    Setting("policy", Type.CLASS, "a.B", "Policy.", PluginClass({"a.B": "a.B", "B": "a.B"}.get)),
    Setting("secret", Type.PASSWORD, None, "A secret."),
)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("tasks.max", " +3 ", 3),
        ("factor", "-1", -1),
        ("enabled", " TRUE", True),
        ("ratio", "1e0", 1.0),
        ("ratio", "0.5f", 0.5),
        ("topics", "a , b\t,c", ("a", "b", "c")),
        ("topics", " ", ()),
        ("topics", "a,b,a", ("a", "b")),
        ("protocol", "ssl", "ssl"),
        ("secret", " x ", Password("x")),
        ("alias", "  us ", "us"),
        ("policy", " B ", "a.B"),
    ],
)
def test_values_of_a_file(name: str, text: str, value: Value) -> None:
    assert CONFIG.parse({name: text})[name] == value


def invalid(name: str, text: str, *reasons: str) -> tuple[str, str, list[str]]:
    """A name, a value and the errors of its validation; Java's words throughout."""
    return name, text, [f"Invalid value {text} for configuration {name}: {reason}" for reason in reasons]


NO_INT = "Not a number of type INT"
NULL = "Invalid value null for configuration tasks.max: Value must be non-null"
CONTROL = "String may not contain control sequences but had the following ASCII chars: 1"
REFUSED = [
    ("topics", "a,,b", ["Configuration 'topics' values must not be empty."]),
    ("topics", "a,", ["Configuration 'topics' values must not be empty."]),
    ("formats", "", ["Configuration 'formats' must not be empty. Valid values include: [legacy, new]"]),
    invalid("formats", "x", "String must be one of: legacy, new"),
    ("transforms", "a,a", ["Invalid value [a, a] for configuration transforms: Duplicate alias provided."]),
    invalid("tasks.max", "0", "Value must be at least 1"),
    *(("tasks.max", text, [*invalid("tasks.max", text, NO_INT)[2], NULL]) for text in ("99999999999", "1_0")),
    invalid("factor", "40000", "Not a number of type SHORT"),
    invalid("ratio", "0.1", "Value must be at least 0.5"),
    invalid("ratio", "1.5", "Value must be no more than 1.0"),
    invalid("enabled", "yes", "Expected value to be either true or false"),
    invalid("location", "x", "String must be one of: source, target"),
    invalid("location", "SOURCE", "String must be one of: source, target"),
    invalid("protocol", "x", "String must be one of (case insensitive): SSL, PLAINTEXT"),
    invalid("policy", "nope", "Class nope could not be found."),
    invalid("name", "", "String may not be empty"),
    invalid("name", "a\u0001b", CONTROL),
]


@pytest.mark.parametrize(("name", "text", "errors"), REFUSED)
def test_refused_values(name: str, text: str, errors: list[str]) -> None:
    assert list(CONFIG.validate({name: text})[name].errors) == errors
    with pytest.raises(ConfigError) as caught:
        CONFIG.parse({name: text})
    assert (caught.value.message, caught.value.key) == (errors[0], name)


def test_a_repeated_element_is_forgiven_in_a_file_and_refused_over_rest() -> None:
    values = CONFIG.parse({"topics": "a,b,a"})
    assert values.strings("topics") == ("a", "b")
    assert values.warnings == ("topics contains repeated elements; using a,b",)
    outcome = CONFIG.validate({"topics": "a,b,a"})["topics"]
    assert outcome.errors == ("Configuration 'topics' values must not be duplicated.",)
    assert outcome.value == ("a", "b", "a")


def test_a_missing_required_setting() -> None:
    config = ConfigDef.of(Setting("alias", Type.STRING, REQUIRED, "An alias."))
    message = 'Missing required configuration "alias" which has no default value.'
    assert config.validate({})["alias"].errors == (message,)
    with pytest.raises(ConfigError) as caught:
        config.parse({})
    assert caught.value.message == message


def test_a_password_is_never_shown() -> None:
    values = CONFIG.parse({"secret": "s3cret"})
    assert values["secret"] == Password("s3cret")
    assert str(values["secret"]) == repr(values["secret"]) == "[hidden]"
    assert f"{values['secret']}" == "[hidden]"


@given(st.lists(st.text(st.characters(exclude_characters=",", exclude_categories=["Cs"])), min_size=1))
def test_a_list_is_split_at_commas(elements: list[str]) -> None:
    joined = ",".join(elements)
    if joined.strip("".join(map(chr, range(33)))):
        assert len(split_list(joined)) == len(elements)


@given(st.integers(-(2**70), 2**70), st.sampled_from([(Type.SHORT, 15), (Type.INT, 31), (Type.LONG, 63)]))
def test_numbers_fit_their_type_or_are_refused(number: int, of: tuple[Type, int]) -> None:
    type_, bits = of
    if -(2**bits) <= number < 2**bits:
        assert convert("x", str(number), type_) == number
    else:
        with pytest.raises(InvalidValue, match=f"Not a number of type {type_.name}"):
            convert("x", str(number), type_)
