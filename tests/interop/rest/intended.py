"""The differences between Java's answers and ours that are meant, each with its reason."""

from __future__ import annotations

from typing import Final

from connect.core.config.connector_settings import AUTO_RESTART
from connectors.config.definitions import OWN
from tests.interop.rest.compare import Intended

_READABLE: Final = "whoever can make a connector of a name can also read and delete it"
_OURS: Final = "a setting of our own"
_COPIED: Final = "records are copied as they are, so converters that change them are refused"
_UNSIGNED: Final = "a signature is checked before the body is read"
_HASH: Final = "Java keeps a converter's settings in the order of a hash"

INTENDED: Final[tuple[Intended, ...]] = (
    Intended("*", "*.documentation", "what a setting does is said in words of our own"),
    Intended("*", "headers.content-type", "Java's errors from before a resource is found are JSON that says not so"),
    Intended("*", "headers.allow", "the answer to a wrong method names the right ones, as HTTP wants"),
    *(Intended("*", f"body*.{key}", _OURS) for key in (*OWN.settings, *AUTO_RESTART.settings)),
    Intended("plugins*", "body.*FileStreamSinkConnector/sink", "this framework runs sources"),
    Intended("named 'a/b'*", "status", _READABLE),
    Intended("named 'a%b'*", "status", _READABLE),
    Intended("named 'a\\\\b'*", "status", _READABLE),
    Intended("create, named '<a>*", "status", "Java makes the connector, then fails to write its address with braces"),
    Intended("a path that climbs, encoded", "status", "a name of two dots is a name"),
    Intended("create, named 'a;b'", "headers.location", "a semicolon is encoded, which reads the same"),
    Intended("create, named 'a/b'", "headers.location", "Java's address is that of another resource"),
    Intended("create, a value of the connector's own null", "status", "Java stores the null, and the connector fails"),
    Intended("nulled, delete", "status", "there is nothing to delete, see above"),
    Intended("task configs, not base64", "body.message", "each decoder has words of its own"),
    Intended("patch, class away", "body.message", "Java prints the config in an order of its own"),
    Intended(
        "validate, null as a value", "body.*", "Java lets a null pass where the connector's own key has no default"
    ),
    Intended(
        "validate, * a broken pattern", "body.errors.*", "each engine of regular expressions has words of its own"
    ),
    Intended(
        "validate, a transform without its settings", "body.error*", "Java's check fails on the missing value too"
    ),
    Intended("validate, a transform, a wrong cast", "body.errors.*", "Java mixes up the parts of its sentence"),
    Intended("validate, converter's setting*", "body.groups.*", _HASH),
    Intended("validate, converter's setting*", "body.keys#order", _HASH),
    *(
        Intended("validate, mirror source, converters of the worker", f"body.{field}", _COPIED)
        for field in ("error_count", "values.key.converter", "errors.key.converter")
    ),
    Intended("validate, mirror source, policy nobody has", "body.errors.*", "ours names the policies that there are"),
    Intended("missing, patch null", "status", "a body is refused before its connector is looked for"),
    *(
        Intended(f"task configs, {body}*", "status", _UNSIGNED)
        for body in ("broken JSON", "an object", "of objects", "no body")
    ),
    Intended("create, class*", "body.message", "Java prints its own objects of all connectors"),
)
