"""Java properties files, read as Java reads them, with the line of every key for messages.

Kafka's ``Utils.loadProps`` hands the file to ``java.util.Properties.load(InputStream)``: Latin-1 with ``\\uXXXX``
escapes, the last of several equal keys wins.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import javaproperties
from javaproperties import KeyValue

from connect.core.errors import ConfigError

#: A properties file of a megabyte is a mistake, such as a log or a jar given instead.
MAX_FILE_BYTES: Final = 1024 * 1024
_LINE_END: Final = re.compile(r"\r\n|\r|\n")


class Properties(Mapping[str, str]):
    """Keys and values in the file's order, and where each stands.

    ``repr`` names the keys only: values hold passwords.
    """

    def __init__(
        self,
        values: Mapping[str, str],
        lines: Mapping[str, int] | None = None,
        file: str | None = None,
    ):
        self._values = dict(values)
        self._lines = dict(lines or {})
        #: The file as its user named it, None for properties from elsewhere.
        self.file = file

    def __getitem__(self, key: str) -> str:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Properties({list(self._values)}, file={self.file!r})"

    def line(self, key: str) -> int | None:
        """The line, from 1, on which the value in force begins; None for a key that is not in the file."""
        return self._lines.get(key)

    def error(self, message: str, key: str) -> ConfigError:
        """A :class:`ConfigError` that names the file and the key's line."""
        return ConfigError(message, key, self.file, self.line(key))


def load_properties(path: str | Path) -> Properties:
    """The properties of a file.

    Raises:
        ConfigError: It cannot be read, is no file, far too large, or malformed; the line is named where there is one.
    """
    file = str(path)
    try:
        if Path(path).is_dir():
            raise ConfigError("is a folder, not a properties file", file=file)
        with open(path, "rb") as source:
            data = source.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror or type(error).__name__}", file=file) from None
    except ValueError as error:
        raise ConfigError(f"cannot be read: {error}", file=file) from None
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(
            f"is larger than {MAX_FILE_BYTES} bytes; is it a properties file?",
            file=file,
        )
    if b"\0" in data:
        raise ConfigError("holds binary data; is it a properties file?", file=file)
    return parse_properties(data, file)


def parse_properties(text: bytes | str, file: str | None = None) -> Properties:
    r"""The properties in a text; bytes are Latin-1 as for Java, a byte order mark of UTF-8 is skipped.

    Raises:
        ConfigError: A ``\u`` escape is malformed.
    """
    if isinstance(text, bytes):
        text = text.removeprefix(codecs.BOM_UTF8).decode("latin-1")
    values: dict[str, str] = {}
    lines: dict[str, int] = {}
    line = 1
    try:
        for element in javaproperties.parse(text):
            if isinstance(element, KeyValue):
                values[element.key] = element.value
                lines[element.key] = line
            line += len(_LINE_END.findall(element.source))
    except javaproperties.InvalidUEscapeError:
        # The escape itself may be a piece of a password, so the line has to do.
        raise ConfigError(
            "malformed \\u escape: four hexadecimal digits must follow; a plain backslash is written twice",
            None,
            file,
            line,
        ) from None
    return Properties(values, lines, file)
