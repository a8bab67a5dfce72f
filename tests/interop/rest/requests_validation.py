"""Validations of connector configs: one key wrong at a time, then several, then the whole of a good one."""

from __future__ import annotations

from typing import Any, Final

from tests.interop.rest.asks import COPIED, NOTHING, Ask, file_source, post, put

_FILE_CLASS: Final = "org.apache.kafka.connect.file.FileStreamSourceConnector"


def _path(plugin: str) -> str:
    return f"/connector-plugins/{plugin}/config/validate"


def _file(name: str, /, **changes: Any) -> Ask:
    """A validation of a file source's config that is right but for ``changes``."""
    return put(f"validate, {name}", _path("FileStreamSource"), file_source("x", **changes), view="validation")


def _body(name: str, body: Any) -> Ask:
    return put(f"validate, {name}", _path("FileStreamSource"), body, view="validation")


def _mirror(name: str, kind: str, /, **changes: Any) -> Ask:
    config: dict[str, Any] = {
        "name": "mirror",
        "connector.class": f"org.apache.kafka.connect.mirror.Mirror{kind}Connector",
        "source.cluster.alias": "us",
        "target.cluster.alias": "eu",
        "source.cluster.bootstrap.servers": "$BOOTSTRAP",
        "target.cluster.bootstrap.servers": "$BOOTSTRAP",
        **COPIED,
        **{key.replace("__", "."): value for key, value in changes.items()},
    }
    config = {key: value for key, value in config.items() if value is not None}
    return put(f"validate, {name}", _path(f"Mirror{kind}Connector"), config, view="validation")


_PATHS: Final = (
    put("validate, whole", _path("FileStreamSource"), file_source("x")),
    put("validate, simple name", _path("FileStreamSourceConnector"), file_source("x"), view="validation"),
    put("validate, full name", _path(_FILE_CLASS), file_source("x", connector__class=_FILE_CLASS), view="validation"),
    put("validate, the end of a name", _path("Source"), file_source("x"), view="validation"),
    put("validate, another class", _path("MirrorSource"), file_source("x")),
    put("validate, a class nobody has", _path("Nothing"), file_source("x", connector__class="Nothing")),
    put("validate, path of no plugin, no class", _path("Nothing"), {"name": "x"}),
    put("validate, a converter", _path("StringConverter"), file_source("x", connector__class="StringConverter")),
    post("validate, POST", _path("FileStreamSource"), {}),
)

_BODIES: Final = (
    _body("empty object", {}),
    _body("null", None),
    _body("no body", NOTHING),
    _body("a list", []),
    _body("a string", "x"),
    _body("broken JSON", b'{"name":'),
    _body("two documents", b'{"name":"x"} {"name":"y"}'),
    _body("not UTF-8", b'{"name":"\xff"}'),
    _body("a key twice", b'{"connector.class":"FileStreamSource","name":"x","name":"y","topic":"t"}'),
    _file("number as a number", tasks__max=1),
    _file("number with a fraction", tasks__max=1.5),
    _file("true as a value", tasks__max__enforce=True),
    _file("an object as a value", extra={"a": "b"}),
    _file("a list as a value", extra=["a"]),
    _body("null as a value", {**file_source("x"), "file": None}),
    _body("null for a number", {**file_source("x"), "tasks.max": None}),
)

_CREATED: Final = {"topic__creation__default__partitions": "1", "topic__creation__default__replication__factor": "1"}

_FRAMEWORK: Final = (
    _file("no name", name=None),
    _file("empty name", name=""),
    _file("name of spaces", name="  "),
    _file("name with a control character", name="a\u0007b"),
    _file("name with a slash", name="a/b c%"),
    _file("no topic", topic=None),
    _file("empty topic", topic=""),
    _file("several wrong", topic=None, tasks__max="0", errors__tolerance="some", batch__size="many"),
    _file("unknown keys", unknown="1", another__unknown="2"),
    _file("tasks.max 0", tasks__max="0"),
    _file("tasks.max no number", tasks__max="many"),
    _file("tasks.max too large", tasks__max="3000000000"),
    _file("tasks.max with spaces", tasks__max=" 2 "),
    _file("tasks.max.enforce", tasks__max__enforce="maybe"),
    _file("errors.tolerance", errors__tolerance="some"),
    _file("errors.tolerance in capitals", errors__tolerance="ALL"),
    _file("errors.retry.delay.max.ms", errors__retry__delay__max__ms="-5"),
    _file("errors.log.enable", errors__log__enable="yes"),
    _file("config.action.reload", config__action__reload="never"),
    _file("config.action.reload in capitals", config__action__reload="RESTART"),
    _file("connector version", connector__plugin__version="4.3.1"),
    _file("connector version nobody has", connector__plugin__version="1.0"),
    _file("connector version broken", connector__plugin__version="[bad"),
    _file("converter nobody has", value__converter="NoSuchConverter"),
    _file("converter that is none", value__converter="FileStreamSource"),
    _file("converter by alias", value__converter="StringConverter"),
    _file(
        "converter's setting",
        value__converter="org.apache.kafka.connect.json.JsonConverter",
        value__converter__schemas__enable="maybe",
    ),
    _file("converter's setting that is right", key__converter="JsonConverter", key__converter__schemas__enable="false"),
    _file("header converter nobody has", header__converter="NoSuchConverter"),
    _file("exactly.once.support required", exactly__once__support="required"),
    _file("exactly.once.support wrong", exactly__once__support="perhaps"),
    _file("transaction.boundary connector", transaction__boundary="connector"),
    _file("transaction.boundary wrong", transaction__boundary="never"),
    _file(
        "transaction.boundary.interval.ms", transaction__boundary="interval", transaction__boundary__interval__ms="0"
    ),
    _file("offsets.storage.topic blank", offsets__storage__topic=" "),
    _file("offsets.storage.topic", offsets__storage__topic="own-offsets"),
    _file("a provider that is not there", file="${vault:a:b}"),
    _file("override", producer__override__acks="1"),
    _file("override nobody knows", producer__override__nothing="1"),
    _file("override of a wrong type", producer__override__linger__ms="bad"),
    _file("topic creation", **_CREATED),
    _file("topic creation, factor missing", topic__creation__default__partitions="1"),
    _file("topic creation, factor 0", **{**_CREATED, "topic__creation__default__replication__factor": "0"}),
    _file(
        "topic creation, partitions -2",
        topic__creation__default__partitions="-2",
        topic__creation__default__replication__factor="-1",
    ),
    _file("topic creation, a group", topic__creation__groups="a", topic__creation__a__include="x.*", **_CREATED),
    _file("topic creation, a group without include", topic__creation__groups="a", **_CREATED),
    _file("topic creation, a group twice", topic__creation__groups="a,a", **_CREATED),
    _file("topic creation, group default", topic__creation__groups="default", **_CREATED),
    _file("topic creation, a broken pattern", topic__creation__groups="a", topic__creation__a__include="[", **_CREATED),
)

_ROUTER: Final = "org.apache.kafka.connect.transforms.RegexRouter"
_MATCHES: Final = "org.apache.kafka.connect.transforms.predicates.TopicNameMatches"

_FILTER: Final = {"transforms": "f", "transforms__f__type": "org.apache.kafka.connect.transforms.Filter"}
_CAST: Final = {"transforms": "k", "transforms__k__type": "org.apache.kafka.connect.transforms.Cast$Value"}
_PREDICATE: Final = {"predicates": "p", "predicates__p__type": _MATCHES}


def _routed(transforms: str = "r", kind: str = _ROUTER, regex: str = "a") -> dict[str, str]:
    return {
        "transforms": transforms,
        "transforms__r__type": kind,
        "transforms__r__regex": regex,
        "transforms__r__replacement": "b",
    }


_TRANSFORMS: Final = (
    _file("a transform", **_routed()),
    put("validate, a transform, whole", _path("FileStreamSource"), file_source("x", **_routed())),
    _file("a transform by alias", **_routed(kind="RegexRouter")),
    _file("a transform of no type", transforms="r"),
    _file("a transform nobody has", transforms="r", transforms__r__type="NoSuchTransform"),
    _file("a transform that is none", transforms="r", transforms__r__type="StringConverter"),
    _file("a transform without its settings", transforms="r", transforms__r__type=_ROUTER),
    _file("a transform with a broken pattern", **_routed(regex="[")),
    _file("a transform twice", **_routed("r,r")),
    _file("an empty transform", **_routed("r,,s")),
    _file("transforms empty", transforms=""),
    _file("a transform's version", **_routed(), transforms__r__plugin__version="1.0"),
    _file("a transform, both", **_CAST, transforms__k__spec="int8"),
    _file("a transform, a wrong cast", **_CAST, transforms__k__spec="int7"),
    _file("a predicate nobody uses", **_PREDICATE, predicates__p__pattern="a.*"),
    _file(
        "a predicate",
        **_PREDICATE,
        predicates__p__pattern="a.*",
        **_FILTER,
        transforms__f__predicate="p",
        transforms__f__negate="true",
    ),
    _file("a predicate nobody defined", **_FILTER, transforms__f__predicate="p"),
    _file("a predicate of no type", predicates="p"),
    _file("a predicate with a broken pattern", **_PREDICATE, predicates__p__pattern="["),
    _file("negate alone", **_FILTER, transforms__f__negate="true"),
)

_MIRRORS: Final = (
    _mirror("mirror source", "Source"),
    _mirror("mirror source, converters of the worker", "Source", **dict.fromkeys(COPIED)),
    _mirror("mirror source, no aliases", "Source", source__cluster__alias=None, target__cluster__alias=None),
    _mirror("mirror source, no brokers", "Source", source__cluster__bootstrap__servers=None),
    _mirror("mirror source, an empty topic", "Source", topics="a,,b"),
    _mirror("mirror source, a topic twice", "Source", topics="a,a"),
    _mirror("mirror source, no topics", "Source", topics=""),
    _mirror(
        "mirror source, numbers",
        "Source",
        replication__factor="x",
        offset__lag__max="-1",
        refresh__topics__interval__seconds="x",
    ),
    _mirror("mirror source, policy nobody has", "Source", replication__policy__class="NoSuchPolicy"),
    _mirror("mirror source, where syncs go", "Source", offset__syncs__topic__location="moon"),
    _mirror("mirror source, metric names", "Source", metric__names__formats="old"),
    _mirror("mirror source, metric names empty", "Source", metric__names__formats=""),
    _mirror("mirror source, metric names twice", "Source", metric__names__formats="new,new"),
    _mirror("mirror source, exactly once", "Source", exactly__once__support="required"),
    _mirror("mirror source, its version", "Source", connector__plugin__version="1.0"),
    _mirror("heartbeats", "Heartbeat"),
    _mirror(
        "heartbeats, numbers",
        "Heartbeat",
        emit__heartbeats__interval__seconds="x",
        heartbeats__topic__replication__factor="x",
    ),
    _mirror("checkpoints", "Checkpoint"),
    _mirror("checkpoints, a group twice", "Checkpoint", groups="a,a"),
    _mirror(
        "checkpoints, both off", "Checkpoint", emit__checkpoints__enabled="false", sync__group__offsets__enabled="false"
    ),
    _mirror("checkpoints, syncs off", "Checkpoint", emit__offset__syncs__enabled="false"),
)

VALIDATION: Final = (*_PATHS, *_BODIES, *_FRAMEWORK, *_TRANSFORMS, *_MIRRORS)
