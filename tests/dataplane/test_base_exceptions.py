"""Exceptions of user code that do not derive from `Exception`: each is an error of the user.

Method: one pipeline for each place that calls user code, in `PipelineTest`. The function there
raises an exception for one record of a batch. Under a policy, the record is refused, and the others
come through. Without one, the error names the place. What ends the process is no error of the user.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from tidegate import (
    BoundedOutOfOrderness,
    Context,
    Count,
    Fired,
    KafkaSink,
    KafkaSource,
    KeyedProcess,
    Pipeline,
    PipelineError,
    Process,
    ProcessContext,
    ProcessingTimer,
    Tumbling,
    Utf8,
    ValueState,
    Window,
    build,
)
from tidegate.dataplane.refusals import Refusals
from tidegate.errors import BadRecordError, TidegateError, UserCodeError
from tidegate.protocol.errors import ErrorReport
from tidegate.testing import FunctionHarness, PipelineTest
from tidegate.user_exceptions import Interrupted, Terminated, process_ends


class PanicError(BaseException):
    """A panic of a Rust library: PyO3 derives it from BaseException."""


class Raises:
    """The exception that the function of a pipeline raises for the record "boom"."""

    error: BaseException = PanicError()


def strike(text: str) -> str:
    if text == "boom":
        raise Raises.error
    return text


def pipeline(define: Callable[[Any], None], **declared: Any) -> Any:
    """Return a pipeline from `source` to `out` whose steps `define` adds."""
    members = {
        "source": KafkaSource("in", value=Utf8()),
        "out": KafkaSink("out", value=Utf8()),
        "define": define,
        **declared,
    }
    return type("Struck", (Pipeline,), members, name="struck")


class Struck(Process[str, str]):
    def process(self, record: str, ctx: ProcessContext) -> Iterable[str]:
        yield strike(record)


class StruckByKey(KeyedProcess[str, str, str]):
    seen = ValueState(int, default=0)

    def process(self, record: str, ctx: Context[str]) -> Iterable[str]:
        self.seen.value += 1
        yield strike(record)


class Decodes(Utf8):
    """A format whose decoder is code of the user."""

    def decoder(self) -> Callable[[bytes], str]:
        return lambda data: strike(data.decode())


class Encodes(Utf8):
    """A format whose encoder is code of the user."""

    def encoder(self) -> Callable[[str], bytes]:
        return lambda text: strike(text).encode()


def timed(text: str) -> int:
    return len(strike(text))


WITH_POLICY: dict[str, Callable[[Any], Any]] = {
    "map": lambda of: pipeline(lambda self: self.source.map(strike, **of).to(self.out)),
    "filter": lambda of: pipeline(
        lambda self: self.source.filter(lambda text: bool(strike(text)), **of).to(self.out)
    ),
    "flat_map": lambda of: pipeline(
        lambda self: (
            self.source.flat_map(lambda text: (strike(one) for one in [text]), returns=str, **of)
        ).to(self.out)
    ),
    "process": lambda of: pipeline(lambda self: self.source.process(Struck(), **of).to(self.out)),
    "keyed": lambda of: pipeline(
        lambda self: (
            self.source.key_by(lambda _: "k", returns=str)
            .process(StruckByKey(), uid="struck", **of)
            .to(self.out)
        )
    ),
    "key_by": lambda of: pipeline(
        lambda self: self.source.key_by(strike, **of).process(Echo(), uid="echo").to(self.out)
    ),
    "decoder": lambda of: pipeline(
        lambda self: self.source.to(self.out),
        source=KafkaSource("in", value=Decodes(), on_bad_record=of.get("on_error", "fail")),
    ),
    "encoder": lambda of: pipeline(
        lambda self: self.source.to(self.out), out=KafkaSink("out", value=Encodes(), **of)
    ),
    "event_time": lambda of: pipeline(
        lambda self: self.source.to(self.out),
        source=KafkaSource(
            "in",
            value=Utf8(),
            event_time=timed,
            watermarks=BoundedOutOfOrderness("1 s"),
            on_bad_record=of.get("on_error", "fail"),
        ),
    ),
}


class Echo(KeyedProcess[str, str, str]):
    def process(self, record: str, ctx: Context[str]) -> Iterable[str]:
        yield record


ERRORS = [
    PanicError("called `unwrap()` on a `None` value"),
    asyncio.CancelledError(),
    SystemExit(0),
    GeneratorExit(),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("place", WITH_POLICY)
def test_policy_covers_every_exception(
    place: str, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Raises, "error", error)
    struck = WITH_POLICY[place]({"on_error": "skip"})
    with PipelineTest(struck) as test:
        test.source(struck.source).push("a", "boom", "b")
        assert test.sink(struck.out).read() == ["a", "b"]
        assert test.counters.skipped == 1


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("place", WITH_POLICY)
def test_error_without_a_policy_names_the_exception_and_the_record(
    place: str, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Raises, "error", error)
    struck = WITH_POLICY[place]({})
    with (
        pytest.raises((UserCodeError, BadRecordError), match=type(error).__name__) as raised,
        PipelineTest(struck) as test,
    ):
        test.source(struck.source).push("a", "boom", "b")
    assert "offset 1" in str(raised.value)


@pytest.mark.parametrize("place", WITH_POLICY)
def test_end_of_the_process_is_no_error_of_the_user(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for error in (Terminated(0), Interrupted(), KeyboardInterrupt()):
        monkeypatch.setattr(Raises, "error", error)
        struck = WITH_POLICY[place]({"on_error": "skip"})
        with pytest.raises(type(error)), PipelineTest(struck) as test:
            test.source(struck.source).push("a", "boom", "b")


def test_interrupt_is_an_error_of_the_user_where_sigint_has_another_handler() -> None:
    """A process of a job ignores SIGINT."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert Refusals("map-1", "skip").covers(KeyboardInterrupt())
        assert not isinstance(KeyboardInterrupt(), process_ends())
        assert not Refusals("map-1", "skip").covers(Terminated(0))
    finally:
        signal.signal(signal.SIGINT, before)
    assert not Refusals("map-1", "skip").covers(KeyboardInterrupt())


def test_memory_is_a_problem_of_the_host_and_recursion_one_of_the_record() -> None:
    refusals = Refusals("map-1", "skip")
    assert not refusals.covers(MemoryError())
    assert refusals.covers(RecursionError("maximum recursion depth exceeded"))


class Alarm(KeyedProcess[str, str, str]):
    due = ProcessingTimer()

    def process(self, record: str, ctx: Context[str]) -> Iterable[str]:
        self.due.set(ctx.processing_time_ms + 1)
        yield record

    def on_timer(self, fired: Fired, ctx: Context[str]) -> Iterable[str]:
        raise PanicError("late")


def test_error_of_a_timer_names_the_timer() -> None:
    with FunctionHarness(Alarm()) as harness:
        harness.push("k", "a")
        with pytest.raises(UserCodeError, match=r"on_timer raised PanicError: late"):
            harness.advance("1 s")


class Opens(Process[str, str]):
    def open(self) -> None:
        raise SystemExit(3)

    def process(self, record: str, ctx: ProcessContext) -> Iterable[str]:
        yield record


def test_error_of_open_names_the_step() -> None:
    struck = pipeline(lambda self: self.source.process(Opens()).to(self.out))
    with pytest.raises(UserCodeError, match=r"open\(\) of step 'process-1' .*SystemExit: 3"):
        PipelineTest(struck).__enter__()


def into(window: Window[str], count: int) -> str:
    raise PanicError(window.key)


def test_error_of_a_window_names_its_key_and_its_traceback_begins_in_user_code() -> None:
    struck = pipeline(
        lambda self: (
            self.source.key_by(lambda _: "k", returns=str)
            .window(Tumbling("1 s"))
            .aggregate(Count(), into=into, uid="windows")
            .to(self.out)
        ),
        source=KafkaSource(
            "in", value=Utf8(), event_time=len, watermarks=BoundedOutOfOrderness("1 s")
        ),
    )
    with PipelineTest(struck) as test:
        test.source(struck.source).push("a")
        named = r"PanicError: k, for the window of key 'k'"
        with pytest.raises(UserCodeError, match=named) as raised:
            test.source(struck.source).watermark(10_000)
    assert __file__ in ErrorReport.of(raised.value).traceback.splitlines()[1]


def test_exception_of_define_is_an_error_of_the_pipeline() -> None:
    def define(_: object) -> None:
        raise SystemExit(0)

    with pytest.raises(PipelineError, match=r"define\(\) raised SystemExit: 0"):
        build(pipeline(define))


class Silent(Exception):
    def __str__(self) -> str:
        raise AttributeError("status")


def test_exception_without_a_text_is_refused_as_any_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Raises, "error", Silent("down"))
    for place, make in WITH_POLICY.items():
        struck = make({"on_error": "skip"})
        with PipelineTest(struck) as test:
            test.source(struck.source).push("a", "boom", "b")
            assert test.sink(struck.out).read() == ["a", "b"], place
        with (
            pytest.raises(TidegateError, match=r"__str__ raised AttributeError.*down"),
            PipelineTest(struck := make({})) as test,
        ):
            test.source(struck.source).push("boom")
