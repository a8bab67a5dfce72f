"""Offsets read, altered and reset over REST, of the file source and of the mirror."""

from __future__ import annotations

from typing import Any, Final

from tests.interop.rest.asks import COPIED, NOTHING, Ask, Until, delete, file_source, get, patch, post, put, states

_PARTITION: Final = {"filename": "$FOLDER/lines.txt"}
_OFFSETS: Final = "/connectors/reader/offsets"
_RUNNING: Final = states("reader", "RUNNING", "RUNNING")
_STOPPED: Final = states("reader", "STOPPED")
_READ: Final = Until(_OFFSETS, body={"offsets": [{"offset": {"position": 14}}]})


def _alter(name: str, body: Any, **more: Any) -> Ask:
    return patch(f"alter offsets, {name}", _OFFSETS, body, **more)


def _one(partition: Any, offset: Any) -> dict[str, Any]:
    return {"offsets": [{"partition": partition, "offset": offset}]}


_SHAPES: Final = (
    _alter("no body", NOTHING),
    _alter("null", None),
    _alter("a list", []),
    _alter("a string", "x"),
    _alter("broken JSON", b'{"offsets":'),
    _alter("empty object", {}),
    _alter("null offsets", {"offsets": None}),
    _alter("no offsets", {"offsets": []}),
    _alter("offsets an object", {"offsets": {}}),
    _alter("offsets of numbers", {"offsets": [123]}),
    _alter("offsets of null", {"offsets": [None]}),
    _alter("another field", {"key": []}),
    _alter("a field too many", {**_one(_PARTITION, {"position": 4}), "more": 1}),
    _alter("a field too many inside", {"offsets": [{"partition": _PARTITION, "offset": None, "more": 1}]}),
    _alter("a partition that is a list", _one([], {"position": 4})),
    _alter("an offset that is a number", _one(_PARTITION, 4)),
)

OFFSETS: Final = (
    post("create reader", "/connectors", {"name": "reader", "config": file_source(None)}),
    get("offsets", _OFFSETS, before=_READ),
    get(
        "topics of reader",
        "/connectors/reader/topics",
        before=Until("/connectors/reader/topics", body={"reader": {"topics": ["$TOPIC"]}}),
    ),
    put("topics of reader, reset", "/connectors/reader/topics/reset"),
    get(
        "topics of reader, after",
        "/connectors/reader/topics",
        before=Until("/connectors/reader/topics", body={"reader": {"topics": []}}),
    ),
    _alter("running", _one(_PARTITION, {"position": 4}), before=_RUNNING),
    delete("reset offsets, running", _OFFSETS),
    put("pause reader", "/connectors/reader/pause"),
    _alter("paused", _one(_PARTITION, {"position": 4}), before=states("reader", "PAUSED", "PAUSED")),
    *_SHAPES,
    put("stop reader", "/connectors/reader/stop"),
    get("offsets, stopped", _OFFSETS, before=_STOPPED),
    _alter("stopped", _one(_PARTITION, {"position": 4})),
    get("offsets, altered", _OFFSETS),
    _alter("as a text", _one(_PARTITION, {"position": "4"})),
    _alter("with a fraction", _one(_PARTITION, {"position": 4.5})),
    _alter("below zero", _one(_PARTITION, {"position": -1})),
    _alter("null as position", _one(_PARTITION, {"position": None})),
    _alter("without position", _one(_PARTITION, {"line": 4})),
    _alter("empty offset", _one(_PARTITION, {})),
    _alter("more than a position", _one(_PARTITION, {"position": 4, "line": 1})),
    _alter("without filename", _one({"file": "a"}, {"position": 4})),
    _alter("empty partition", _one({}, {"position": 4})),
    _alter("null partition", _one(None, {"position": 4})),
    _alter("no partition", {"offsets": [{"offset": {"position": 4}}]}),
    _alter("no offset", {"offsets": [{"partition": _PARTITION}]}),
    _alter("another file", _one({"filename": "elsewhere"}, {"position": 7})),
    _alter("nested", _one({"filename": {"a": [1, "x", None]}}, {"position": 7})),
    _alter(
        "the same twice",
        {"offsets": [*_one(_PARTITION, {"position": 1})["offsets"], *_one(_PARTITION, {"position": 2})["offsets"]]},
    ),
    get("offsets, several", _OFFSETS, view="shape"),
    _alter("away", _one({"filename": "elsewhere"}, None)),
    _alter("away, never there", _one({"filename": "nowhere"}, None)),
    delete("reset offsets", _OFFSETS),
    get("offsets, reset", _OFFSETS),
    delete("reset offsets again", _OFFSETS),
    delete("delete reader", "/connectors/reader"),
)

_MIRROR: Final = {
    "name": "mirror",
    "connector.class": "org.apache.kafka.connect.mirror.MirrorSourceConnector",
    "source.cluster.alias": "us",
    "target.cluster.alias": "eu",
    "source.cluster.bootstrap.servers": "$BOOTSTRAP",
    "target.cluster.bootstrap.servers": "$BOOTSTRAP",
    "topics": "none-of-them",
    **COPIED,
}
_TOPIC: Final = {"cluster": "us", "topic": "orders", "partition": 0}


def _mirror(name: str, partition: Any, offset: Any) -> Ask:
    return patch(f"mirror offsets, {name}", "/connectors/mirror/offsets", _one(partition, offset))


MIRROR_OFFSETS: Final = (
    post("create mirror", "/connectors", {"name": "mirror", "config": _MIRROR, "initial_state": "STOPPED"}),
    get("mirror, status", "/connectors/mirror/status", before=states("mirror", "STOPPED")),
    get("mirror offsets, none", "/connectors/mirror/offsets"),
    _mirror("set", _TOPIC, {"offset": 41}),
    get("mirror offsets, one", "/connectors/mirror/offsets"),
    _mirror("partition a text", {**_TOPIC, "partition": "0"}, {"offset": 41}),
    _mirror("partition below zero", {**_TOPIC, "partition": -1}, {"offset": 41}),
    _mirror("no topic", {"cluster": "us", "partition": 0}, {"offset": 41}),
    _mirror("no cluster", {"topic": "orders", "partition": 0}, {"offset": 41}),
    _mirror("another cluster", {**_TOPIC, "cluster": "asia"}, {"offset": 41}),
    _mirror("a field too many", {**_TOPIC, "more": 1}, {"offset": 41}),
    _mirror("offset a text", _TOPIC, {"offset": "41"}),
    _mirror("offset below zero", _TOPIC, {"offset": -1}),
    _mirror("offset null", _TOPIC, {"offset": None}),
    _mirror("no offset", _TOPIC, {"position": 41}),
    _mirror("null partition", None, {"offset": 41}),
    _mirror("away", _TOPIC, None),
    _mirror("away, no such fields", {"topic": "orders"}, None),
    delete("mirror offsets, reset", "/connectors/mirror/offsets"),
    delete("mirror, delete", "/connectors/mirror"),
    post(
        "create checkpoints",
        "/connectors",
        {
            "name": "checkpoints",
            "config": {**_MIRROR, "name": "checkpoints", "connector.class": "MirrorCheckpointConnector"},
            "initial_state": "STOPPED",
        },
    ),
    get("checkpoints, status", "/connectors/checkpoints/status", before=states("checkpoints", "STOPPED")),
    delete("checkpoints, delete", "/connectors/checkpoints"),
)
