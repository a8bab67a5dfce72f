"""Expressions of a ``transform.sql`` that read files, variables or classes, for the parser's tests and Spark's."""

from __future__ import annotations

from typing import Final

_READS: Final = "(SELECT max(value) FROM text.`/etc/passwd`)"

ATTACKS: Final = (
    _READS,
    "(SELECT .5 FROM parquet.`/etc`)",
    "(TABLE parquet.`/etc`)",
    "(VALUES (1))",
    "(FROM binaryFile.`/etc/passwd` SELECT max(content))",
    "exists(SELECT 1 FROM csv.`/etc`)",
    "(SELECT max(id) FROM range(10))",
    "upper((SELECT (SELECT max(value) FROM json.`file:/etc/passwd`)))",
    # Spark ends the raw text at the backslash, reads letters as their capitals, and has comments of its own.
    "concat(r'\\', " + _READS + ", r'\\')",
    'concat(R"\\", ' + _READS + ', r"\\")',
    "concat(1e+5r'\\', " + _READS + ", ' ')",
    "(\u017fELECT max(value) FROM text.`/etc/passwd`)",
    "concat(key -- \r , " + _READS + "\n)",
    "concat(key /* /* */ , " + _READS + " /* */ */)",
    "concat(key /*+ ' */ , " + _READS + " /*+ ' */)",
    "concat(key, $$'$$, " + _READS + ", $$'$$)",
    # Functions that call Java, read files, or are not Spark's own.
    "java_method('java.lang.System', 'getenv', 'HOME')",
    "reflect('java.lang.System', 'getenv', 'HOME')",
    "try_reflect('java.lang.System', 'exit', 1)",
    "`reflect`('java.lang.System', 'getenv', 'HOME')",
    "\"reflect\"('java.lang.System', 'getenv', 'HOME')",
    "system.builtin.java_method('java.lang.System', 'getenv', 'HOME')",
    "IDENTIFIER('reflect')('java.lang.System', 'getenv', 'HOME')",
    "from_protobuf(value, 'M', '/etc/passwd')",
    "from_avro(value, '{}', map('avroSchemaUrl', 'file:/etc/passwd'))",
    "from_xml(value, 'a INT', map('rowValidationXSDPath', '/etc/passwd'))",
    "xpath(value, '/a')",
    "spark_catalog.default.upper(value)",
    "read_files('/etc')",
    "explode(array(1))",
    "input_file_name()",
    "current_path()",
    "a_function_of_a_later_spark(value)",
)
