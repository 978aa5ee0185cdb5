"""What a step gives must be of the type that it declares.

Method: small pipelines with one mistake each, run in slots (where classes are checked) and in a
PipelineTest (where every field is). Each error must name the step, its place, what it gave, what is
declared, and the record that it came from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypedDict, cast

import msgspec
import pydantic
import pytest

from tests.dataplane.slots import KeptSink, RunningSlots
from tests.dataplane.test_operators import Collected, batch, step
from tidegate import (
    Avro,
    Context,
    Json,
    KafkaSink,
    KafkaSource,
    KeyedProcess,
    Pipeline,
    PipelineError,
    Process,
    ProcessContext,
    ProducerRecord,
    Raw,
    SideOutput,
    Stream,
    Utf8,
    ValueState,
)
from tidegate.dataplane.operators.process import ProcessOperator
from tidegate.dataplane.operators.stateless import FusedSteps
from tidegate.dataplane.refusals import Refusals
from tidegate.errors import Retry, UserCodeError
from tidegate.graph.stream_graph import MAIN
from tidegate.testing import FunctionHarness, PipelineTest


class Click(msgspec.Struct, frozen=True):
    user: str
    ms: int


class ClickWithFee(Click, frozen=True):
    fee: int = 0


class ModelClick(pydantic.BaseModel):
    user: str
    ms: int


class DictClick(TypedDict):
    user: str
    ms: int


GIVEN: dict[str, object] = {
    "dict": {"user": "ann", "ms": 1},
    "str": "ann",
    "None": None,
    "list": [Click("ann", 1)],
    "ClickWithFee": ClickWithFee("ann", 1),
}
"""The result of a map for a word. Any other word gives a Click."""


def made(word: str) -> Any:
    return GIVEN.get(word, Click(word, 1))


class Mapped(Pipeline, name="mapped"):
    words = KafkaSource("words", value=Utf8())
    clicks = KafkaSink("clicks", value=Json(Click))

    def define(self) -> None:
        self.words.map(made, returns=Click).filter(lambda click: str(click) != "").to(self.clicks)


def refusal(pipeline: type[Pipeline], *words: str, parallelism: int = 1) -> str:
    """The error of slots for words that begin at offset 70 of words-0."""
    with pytest.raises(UserCodeError) as raised:
        RunningSlots(pipeline, parallelism).push(0, "words", words, first=70)
    assert raised.value.retry is Retry.RESTART
    return str(raised.value)


def refusal_in_a_test(pipeline: Any, *words: str) -> str:
    with pytest.raises(UserCodeError) as raised, PipelineTest(pipeline) as test:
        test.source(pipeline.words).push(*words)
    return str(raised.value)


@pytest.mark.parametrize("word", GIVEN)
def test_a_result_of_another_class_never_reaches_a_sink(word: str) -> None:
    found = type(GIVEN[word]).__name__
    said = refusal(Mapped, "a", "b", word, "str")
    for part in (
        "Mapped: step 'map-1' (",
        "test_result_types.py:",
        f"gave a {found}, and declares a Click, for the record that came from words-0 at offset 72",
        "restart strategy",
    ):
        assert part in said
    assert ("Declare the subclass" in said) is (word == "ClickWithFee")
    assert f"gave a {found}, and declares a Click" in refusal_in_a_test(Mapped, "a", word)


def test_batch_with_a_wrong_result_is_not_written() -> None:
    slots = RunningSlots(Mapped, 1)
    slots.push(0, "words", ["a"])
    with pytest.raises(UserCodeError):
        slots.push(0, "words", ["b", "dict"])
    assert slots.written["clicks"] == [b'{"user":"a","ms":1}']


class Untyped(Pipeline, name="untyped"):
    """The map declares no result type; the sink does."""

    words = KafkaSource("words", value=Utf8())
    clicks = KafkaSink("clicks", value=Json(Click))

    def define(self) -> None:
        results: Stream[Any] = self.words.map(lambda word: GIVEN.get(word, Click(word, 1)))
        results.to(self.clicks)


def test_sink_checks_result_class_when_the_step_declares_none() -> None:
    said = refusal(Untyped, "a", "dict")
    assert "step 'map-1'" in said
    assert "gave a dict, and sink 'clicks' (" in said
    assert "takes a Click" in said
    assert "words-0 at offset 71" in said


class Passing(KeyedProcess[str, Click, Click]):
    seen = ValueState(int, default=0)

    def process(self, click: Click, ctx: Context[str]) -> Iterable[Click]:
        del ctx
        return (click,)


class Keyed(Pipeline, name="keyed"):
    words = KafkaSource("words", value=Utf8())
    clicks = KafkaSink("clicks", value=Json(Click))

    def define(self) -> None:
        results: Stream[Any] = self.words.map(lambda word: GIVEN.get(word, Click(word, 1)))
        keyed = results.key_by(lambda click: getattr(click, "user", "none"), returns=str)
        keyed.process(Passing(), uid="passing").to(self.clicks)


@pytest.mark.parametrize("parallelism", [1, 2])
@pytest.mark.parametrize("word", GIVEN)
def test_edge_refuses_results_of_another_class_at_each_parallelism(
    word: str, parallelism: int
) -> None:
    said = refusal(Keyed, "a", word, parallelism=parallelism)
    assert f"gave a {type(GIVEN[word]).__name__}, and step 'passing' (" in said
    assert "takes a Click" in said
    assert "words-0 at offset 71" in said


class WrongKey(Pipeline, name="wrong-key"):
    words = KafkaSource("words", value=Utf8())
    clicks = KafkaSink("clicks", value=Json(Click))

    def define(self) -> None:
        clicks = self.words.map(made, returns=Click)
        by_ms = clicks.key_by(cast("Any", lambda click: float(click.ms)), returns=int)
        by_ms.process(ByNumber(), uid="by-number").to(self.clicks)


class ByNumber(KeyedProcess[int, Click, Click]):
    seen = ValueState(int, default=0)

    def process(self, click: Click, ctx: Context[int]) -> Iterable[Click]:
        del ctx
        return (click,)


def test_a_key_of_another_class_is_refused() -> None:
    said = refusal(WrongKey, "a")
    assert "step uid 'by-number'" in said
    assert "has a float as key, not an int" in said
    assert "words-0 at offset 70" in said


class Sorted(Process[str, Click]):
    odd = SideOutput(Click)

    def process(self, word: str, ctx: ProcessContext) -> Iterable[Click]:
        ctx.output(self.odd, made(word))
        return ()


class Sides(Pipeline, name="sides"):
    words = KafkaSource("words", value=Utf8())
    clicks = KafkaSink("clicks", value=Json(Click))

    def define(self) -> None:
        self.words.process(Sorted()).side_output(Sorted.odd).to(self.clicks)


def test_a_side_output_is_checked_like_the_results() -> None:
    assert "gave a dict, and declares a Click" in refusal(Sides, "a", "dict")


class Tolerant(Pipeline, name="tolerant"):
    """Policies of the step, of the sink that takes another type, and of the key_by."""

    words = KafkaSource("words", value=Utf8())
    clicks = KafkaSink("clicks", value=Json(Click))
    others = KafkaSink("others", value=Json(Click), on_error="skip")
    keyed = KafkaSink("keyed", value=Json(Click))

    def define(self) -> None:
        policy: Any = {"on_error": "dead_letter", "dead_letter_topic": "dead"}
        self.words.map(made, returns=Click, **policy).to(self.clicks)
        untyped: Stream[Any] = self.words.map(lambda word: GIVEN.get(word, Click(word, 1)))
        untyped.to(self.others)
        user: Any = lambda click: 5 if click.user == "five" else "a"  # noqa: E731
        by_user = untyped.key_by(user, returns=str, on_error="skip")
        by_user.process(Passing(), uid="passing").to(self.keyed)


@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_policy_covers_results_and_keys_of_another_class(parallelism: int) -> None:
    slots = RunningSlots(Tolerant, parallelism)
    slots.push(0, "words", ["a", "dict", "five", "None", "b"])
    users = {
        name: [msgspec.json.decode(value or b"")["user"] for value in slots.written[name]]
        for name in ("clicks", "others", "keyed")
    }
    assert users == {
        "clicks": ["a", "five", "b"],
        "others": ["a", "five", "b"],
        "keyed": ["a", "b"],
    }
    letters = [value for name, all_ in slots.written.items() if "letters" in name for value in all_]
    assert letters == [b'{"user":"ann","ms":1}', b"null"]


def test_policy_covers_a_flat_map_that_returns_no_iterable() -> None:
    class Tolerated(Pipeline, name="tolerated"):
        words = KafkaSource("words", value=Utf8())
        clicks = KafkaSink("clicks", value=Json(Click))

        def define(self) -> None:
            gives: Any = lambda word: made(word) if word == "bare" else [made(word)]  # noqa: E731
            self.words.flat_map(gives, returns=Click, on_error="skip").to(self.clicks)

    slots = RunningSlots(Tolerated, 1)
    slots.push(0, "words", ["a", "bare", "b"])
    assert slots.written["clicks"] == [b'{"user":"a","ms":1}', b'{"user":"b","ms":1}']


# --- records in full, keys, subclasses ------------------------------------------------------------


def sink_step(sink: KafkaSink[Any]) -> KeptSink:
    sink.names.append("out")
    node = step("sink", None)
    object.__setattr__(node, "declaration", sink)
    return KeptSink(node, Refusals("out"), [])


def test_sink_checks_value_and_key_of_producer_records() -> None:
    out = sink_step(KafkaSink.records("out", key=Utf8(), value=Json(Click)))
    out.write(batch(ProducerRecord("ann", Click("ann", 1)), ProducerRecord(None, None)))
    with pytest.raises(UserCodeError, match=r"a value that is a dict, .* takes a Click.* offset 1"):
        out.write(batch(ProducerRecord("ann", None), ProducerRecord("ann", {"user": "ann"})))
    with pytest.raises(UserCodeError, match=r"a key that is an int, .* takes a str"):
        out.write(batch(ProducerRecord(5, None)))


def test_sink_checks_that_a_record_key_has_the_type_of_its_key_format() -> None:
    sink = KafkaSink("out", value=Json(Click), key=Json(int), record_key=lambda click: click.ms)
    out = sink_step(sink)
    with pytest.raises(UserCodeError, match=r"a key that is a str, .* takes an int.* offset 101"):
        out.write(batch(Click("ann", 1), Click("ann", "1")))  # type: ignore[arg-type]


def test_a_stream_of_a_subclass_with_other_fields_is_refused_at_build() -> None:
    class Fees(Pipeline, name="fees"):
        fees = KafkaSource("fees", value=Json(ClickWithFee))
        clicks = KafkaSink("clicks", value=Json(Click))

        def define(self) -> None:
            self.fees.to(self.clicks)  # type: ignore[arg-type]

    with pytest.raises(PipelineError, match="takes records of Click, the stream has ClickWithFee"):
        PipelineTest(Fees)


# --- fields ---------------------------------------------------------------------------------------


class WrongField(Pipeline, name="wrong-field"):
    words = KafkaSource("words", value=Utf8())
    clicks = KafkaSink("clicks", value=Json(Click))

    def define(self) -> None:
        ms: Any = "1"
        self.words.map(lambda word: Click(word, ms), returns=Click).to(self.clicks)


def test_pipeline_test_checks_every_field_of_a_result() -> None:
    said = refusal_in_a_test(WrongField, "a")
    assert "gave a Click in which .ms is a str, not an int, and declares a Click" in said


def test_function_harness_checks_every_field_of_a_result() -> None:
    class Wrong(KeyedProcess[str, str, Click]):
        def process(self, word: str, ctx: Context[str]) -> Iterable[Click]:
            del ctx
            return (Click(word, None),)  # type: ignore[arg-type]

    with FunctionHarness(Wrong()) as harness, pytest.raises(UserCodeError, match=r"\.ms is a None"):
        harness.push("ann", "a")


def test_slots_check_the_fields_of_the_first_structs_of_a_step() -> None:
    slots = RunningSlots(WrongField, 1)
    with pytest.raises(
        UserCodeError, match=r"a Click in which \.ms is a str, not an int, and decl"
    ):
        slots.push(0, "words", ["a"])
    assert slots.written["clicks"] == []


def test_a_sink_of_models_checks_their_fields() -> None:
    out = sink_step(KafkaSink("out", value=Json(ModelClick)))
    out.write(batch(ModelClick(user="ann", ms=1)))
    with pytest.raises(UserCodeError, match=r"Expected `int`.*"):
        out.write(batch(ModelClick.model_construct(user="ann", ms="x")))


class Measured(msgspec.Struct):
    count: int
    share: float
    sure: bool
    many: list[int]
    some: int | None


@pytest.mark.parametrize(
    "change",
    [
        {"count": 5.7},
        {"count": True},
        {"share": True},
        {"sure": 1},
        {"sure": "no"},
        {"many": [1, 2.5]},
        {"some": 0.5},
    ],
    ids=str,
)
def test_avro_does_not_convert_numbers_silently(change: dict[str, Any]) -> None:
    right = Measured(1, 2, True, [1], None)
    codec = Avro(Measured)
    assert codec.decoder()(codec.encoder()(right)) == right
    with pytest.raises(TypeError, match="not a"):
        codec.encoder()(msgspec.structs.replace(right, **change))


# --- what is no iterable of results ---------------------------------------------------------------

BARE: dict[str, Callable[[], Any]] = {
    "ModelClick": lambda: ModelClick(user="ann", ms=1),
    "Click": lambda: Click("ann", 1),
    "str": lambda: "ann",
    "bytes": lambda: b"ann",
    "int": lambda: 5,
    "NoneType": lambda: None,
}


def processing(of: Any, give: Callable[[], Any]) -> ProcessOperator:
    class Gives(Process[int, of]):
        def process(self, record: int, ctx: ProcessContext) -> Iterable[Any]:
            del ctx
            result: Iterable[Any] = [Click("ann", 0)] if record == 0 else give()
            return result

    return ProcessOperator(
        "P", step("process", Gives()), {MAIN: Collected().append}, now_ms=lambda: 0
    )


@pytest.mark.parametrize("name", BARE)
@pytest.mark.parametrize("of", [Click, str, Any])
def test_error_names_a_process_step_that_returns_no_iterable(name: str, of: Any) -> None:
    with pytest.raises(UserCodeError) as raised:
        processing(of, BARE[name]).process(batch(0, 0, 1))
    said = str(raised.value)
    article = "" if name == "NoneType" else "an " if name == "int" else "a "
    returned = "None" if name == "NoneType" else name
    assert f"step 'process-1' (pipeline.py:1) returned {article}{returned}, not an iterable" in said
    assert "came from orders-3 at offset 102" in said
    assert ("return [c]" in said) or (name == "NoneType" and "Return ()" in said)


def test_process_that_returns_a_typed_dict_as_one_result_is_refused() -> None:
    with pytest.raises(UserCodeError, match="returned a dict"):
        processing(DictClick, lambda: {"user": "ann", "ms": 1}).process(batch(1))
    for of in (str, Any):
        processing(of, lambda: {"ann": 1}).process(batch(1))  # an iterable of texts


@pytest.mark.parametrize("name", BARE)
def test_error_names_a_flat_map_step_that_returns_no_iterable(name: str) -> None:
    def gives(value: int) -> Any:
        return [value] if value == 0 else BARE[name]()

    fused = FusedSteps(
        "P",
        [step("map", abs), step("flat_map", gives, 2), step("map", repr, 3)],
        Collected().append,
    )
    with pytest.raises(UserCodeError) as raised:
        fused.process(batch(0, 1))
    assert "step 'flat_map-2' (pipeline.py:2) returned" in str(raised.value)
    assert "orders-3 at offset 101" in str(raised.value)


class KeptClicks(KeyedProcess[str, str, ModelClick]):
    """The state can change in place, so results are copied; or it cannot."""

    last = ValueState(ModelClick | None, default=None)

    def process(self, word: str, ctx: Context[str]) -> Iterable[ModelClick]:
        del ctx
        result: Any = ModelClick(user=word, ms=1)
        return [result] if word == "right" else result


class CountedClicks(KeptClicks):
    last = ValueState(int, default=0)  # type: ignore[assignment]


class ManyStates(CountedClicks):
    first = ValueState(int, default=0)


@pytest.mark.parametrize("function", [KeptClicks, CountedClicks, ManyStates])
def test_keyed_function_that_returns_a_single_result_is_refused(
    function: type[KeptClicks],
) -> None:
    with FunctionHarness(function()) as harness:
        assert harness.push("a", "right") == [ModelClick(user="right", ms=1)]
        with pytest.raises(UserCodeError, match=r"returned a ModelClick, .*write yield c|yield c"):
            harness.push("a", "wrong")


def test_every_kind_of_iterable_is_fine_in_any_order() -> None:
    out = Collected()

    def gives(value: int) -> Iterable[int]:
        kinds: list[Iterable[int]] = [(), [value], (value,), {value}, iter([value]), range(1)]
        return kinds[value % 6]

    FusedSteps("P", [step("flat_map", gives)], out.append).process(batch(*range(12)))
    assert out.values() == [1, 2, 3, 4, 0, 7, 8, 9, 10, 0]


# --- what must cost nothing -----------------------------------------------------------------------


def test_source_records_are_not_type_checked_again_at_the_sink() -> None:
    class Copies(Pipeline, name="copies"):
        words = KafkaSource("words", value=Raw())
        copies = KafkaSink("copies", value=Raw())

        def define(self) -> None:
            self.words.to(self.copies)

    slots = RunningSlots(Copies, 1)
    (chain,) = slots.chains()
    assert chain.from_source() == chain.sinks["copies"].write
