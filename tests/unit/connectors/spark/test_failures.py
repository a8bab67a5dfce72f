"""What Spark says of a failure, in one line."""

import pytest

from connectors.spark.sessions import SparkFailure, failure_of

TRACE = """An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "/app/pyspark/worker.py", line 3, in main
    process()
  File "heliograph.zip/connectors/dataplane/slice.py", line 7, in <module>
    import {module}
{raised}
"""
JOB = """[JOB_ABORTED] Job aborted due to stage failure: Task 0 in stage 3.0 failed 4 times: {cause}
Driver stacktrace:
\tat org.apache.spark.Frame(Frame.scala:1)
"""


def raised(text: str, module: str = "x") -> SparkFailure:
    return failure_of(RuntimeError(TRACE.format(raised=text, module=module)))


def test_a_missing_module_is_named() -> None:
    failure = raised("ModuleNotFoundError: No module named 'crc32c'")
    assert failure.unfit == "cannot import crc32c"
    assert failure.text == "ModuleNotFoundError: No module named 'crc32c'"


def test_an_exception_of_ours_is_told_without_its_trace() -> None:
    failure = raised("TypeError: spoilt")
    assert failure == SparkFailure("TypeError: spoilt", python=True)


def test_of_a_chain_the_last_counts() -> None:
    text = "KeyError: 'a'\n\nDuring handling of the above exception, another exception occurred:\n\n"
    assert raised(f"{text}Traceback (most recent call last):\nValueError: b").text == "ValueError: b"


@pytest.mark.parametrize(
    ("cause", "unfit"),
    [
        ('java.io.IOException: Cannot run program "/no/python": error=2, No such file', "is not there: /no/python"),
        (
            "[PYTHON_VERSION_MISMATCH] Python in worker 3.12, in driver 3.11",
            "is of another version: [PYTHON_VERSION_MISMATCH] Python in worker 3.12, in driver 3.11",
        ),
        ("ExecutorLostFailure (executor 1 exited)", ""),
    ],
)
def test_a_python_that_does_not_fit_is_told_from_an_executor_that_was_lost(cause: str, unfit: str) -> None:
    failure = failure_of(RuntimeError(JOB.format(cause=cause)))
    assert (failure.unfit, failure.python) == (unfit, False)
    assert "\n" not in failure.text
    assert "Frame" not in failure.text


@pytest.mark.parametrize(
    ("error", "settings"),
    [
        (RuntimeError("java.lang.IllegalArgumentException: no such thing"), True),
        (RuntimeError("Could not parse Master URL: 'sparc://x'"), True),
        (RuntimeError("StatusCode.UNAUTHENTICATED"), True),
        (ImportError("grpc"), True),
        (RuntimeError("All masters are unresponsive! Giving up."), False),
        (RuntimeError("StatusCode.UNAVAILABLE"), False),
    ],
)
def test_what_only_other_settings_mend_is_told_apart(error: Exception, settings: bool) -> None:
    assert failure_of(error).settings is settings


def test_an_error_without_words_has_its_name_and_it_survives_the_wire() -> None:
    failure = failure_of(RuntimeError())
    assert failure.text == "RuntimeError: no message"
    assert SparkFailure.from_wire(failure.to_wire()) == failure


def test_of_what_grpc_says_the_words_are_kept() -> None:
    text = "<_InactiveRpcError of RPC that terminated with:\n\tstatus = StatusCode.UNAVAILABLE\n"
    text += '\tdetails = "failed to connect to all addresses"\n\tdebug_error_string = "UNKNOWN"\n>'
    assert failure_of(RuntimeError(text)).text == "failed to connect to all addresses"
