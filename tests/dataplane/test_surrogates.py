r"""Text with half of a surrogate pair, as `json.loads('"\\ud800"')` gives it: it has no UTF-8.

An error that quotes such a text must reach each of its receivers: the header of a dead letter, the
log, and the JobMaster.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable

import msgspec
import pytest

from tests.dataplane.slots import RunningSlots
from tests.dataplane.test_on_error import headers
from tidegate import KafkaSink, KafkaSource, Pipeline, Raw, Utf8
from tidegate.errors import UserCodeError
from tidegate.protocol.errors import ErrorReport
from tidegate.testing import PipelineTest

HALF: str = json.loads('"\\ud800"')


def quoting(data: bytes) -> str:
    word = json.loads(data)
    if word == HALF:
        raise ValueError(f"cannot take {word}")
    return str(word)


class Quoting(Pipeline, name="quoting"):
    words = KafkaSource("words", value=Raw())
    out = KafkaSink("out", value=Utf8())

    def define(self) -> None:
        mapped = self.words.map(quoting, on_error="dead_letter", dead_letter_topic="dead")
        mapped.to(self.out)


def test_step_policy_covers_an_error_that_quotes_a_lone_surrogate(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with PipelineTest(Quoting) as test, caplog.at_level(logging.WARNING):
        test.source(Quoting.words).push(b'"a"', b'"\\ud800"', b'"b"')
        assert test.sink(Quoting.out).read() == ["a", "b"]
        (letter,) = test.dead_letters("dead")
    assert headers(letter)["tidegate.error"] == r"ValueError: cannot take \ud800"
    assert vars(caplog.records[0])["error"] == r"ValueError: cannot take \ud800"


class QuotingFormat(Utf8):
    """A format of a user, whose error quotes the record."""

    def decoder(self) -> Callable[[bytes | memoryview], str]:
        return lambda data: quoting(bytes(data))


class Decoded(Pipeline, name="decoded"):
    words = KafkaSource(
        "words", value=QuotingFormat(), on_bad_record="dead_letter", dead_letter_topic="dead"
    )
    out = KafkaSink("out", value=Utf8())

    def define(self) -> None:
        self.words.to(self.out)


def test_source_policy_covers_an_error_that_quotes_a_lone_surrogate() -> None:
    with PipelineTest(Decoded) as test:
        test.source(Decoded.words).push_bytes(b'"\\ud800"').push_bytes(b'"a"')
        assert test.sink(Decoded.out).read() == ["a"]
        (letter,) = test.dead_letters("dead")
    assert headers(letter)["tidegate.error"] == r"ValueError: cannot take \ud800"


class Failing(Pipeline, name="failing"):
    words = KafkaSource("words", value=Raw())
    out = KafkaSink("out", value=Utf8())

    def define(self) -> None:
        self.words.map(quoting).to(self.out)


def test_error_report_that_quotes_a_lone_surrogate_can_be_encoded() -> None:
    with pytest.raises(UserCodeError) as raised:
        RunningSlots(Failing, 1).push(0, "words", [b'"\\ud800"'])
    for error in (raised.value, ValueError(HALF)):
        report = ErrorReport.of(error)
        assert msgspec.json.decode(msgspec.json.encode(report), type=ErrorReport) == report
        assert r"\ud800" in report.message
        assert r"\ud800" in report.traceback
