"""Mistakes that no type checker sees, and untyped users make: each is one PipelineError.

Goal: every one names the thing and the remedy, and what was written in a pipeline also the
user's file and line. Method: a case for each mistake, with the words that its message must hold.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterable
from datetime import timedelta
from decimal import Decimal
from typing import Any, Literal, NotRequired, TypedDict, cast

import msgspec
import pytest

import tidegate
from pipelines.order_totals import CustomerTotal, Order, OrderTotals, RunningTotal
from tidegate import (
    Avro,
    BoundedOutOfOrderness,
    Context,
    HeaderTime,
    Json,
    KafkaSink,
    KafkaSource,
    KeyedProcess,
    ListState,
    MapState,
    Monotonous,
    Param,
    Pipeline,
    PipelineError,
    Process,
    ProcessContext,
    Punctuated,
    SideOutput,
    Utf8,
    ValueState,
    build,
)
from tidegate.api.records.formats import Protobuf


class Base(Pipeline, name=None):
    """A shared base: the declarations that each case uses."""

    orders = KafkaSource("orders", value=Json(Order))
    totals = KafkaSink("totals", value=Json(CustomerTotal))


@dataclasses.dataclass
class Changeable:
    id: str


@dataclasses.dataclass(frozen=True, eq=False)
class ByIdentity:
    id: str


class NoSchema:
    pass


@dataclasses.dataclass
class Nested:
    inner: Nested | None


def test_class_statement_without_a_name_says_where_and_what_to_write() -> None:
    with pytest.raises(
        PipelineError, match=r"test_wrong_at_build\.py:\d+: .* LateOrders has no name"
    ) as no:

        class LateOrders(Base):  # type: ignore[call-arg]
            pass

    assert 'Write class LateOrders(Base, name="late-orders").' in str(no.value)
    with pytest.raises(PipelineError, match=r'class Été\(Base, name="totals"\)'):
        type("Été", (Base,), {})
    with pytest.raises(PipelineError, match=r"has no option nme=\. Did you mean name="):
        type("Misspelt", (Base,), {}, nme="late")


class Tagged(KeyedProcess[str, Order, CustomerTotal]):
    unknown_country = SideOutput(Order)

    def process(self, order: Order, ctx: Context[str]) -> Iterable[CustomerTotal]:
        return ()


class Pass(Process[CustomerTotal, CustomerTotal]):
    def process(self, record: CustomerTotal, ctx: ProcessContext) -> Iterable[CustomerTotal]:
        return (record,)


class Copy(Process[Order, CustomerTotal]):
    def process(self, record: Order, ctx: ProcessContext) -> Iterable[CustomerTotal]:
        return ()


class Totals(KeyedProcess[str, CustomerTotal, CustomerTotal]):
    def process(self, record: CustomerTotal, ctx: Context[str]) -> Iterable[CustomerTotal]:
        return ()


SHARED = RunningTotal()


def declare(name: str = "case", base: type = Base, **members: object) -> Any:
    return type("Case", (base,), members, name=name)


def built(define: Callable[[Any], object]) -> Callable[[], object]:
    """A pipeline class with this `define`, built."""
    return lambda: build(declare(define=define))


def by_customer(self: Any) -> Any:
    return self.orders.key_by(lambda order: order.customer_id)


def total(self: Any, uid: str = "total") -> Any:
    return by_customer(self).process(RunningTotal(), uid=uid)


def duplicate_uid(self: Base) -> None:
    total(self).to(self.totals)
    total(self).to(self.totals)


def uid_of_a_source(self: Base) -> None:
    total(self, "orders").to(self.totals)


def dangling(self: Base) -> None:
    total(self).to(self.totals)
    self.orders.filter(lambda order: order.amount > 0)


def no_sink(self: Base) -> None:
    self.orders.filter(lambda order: order.amount > 0)


def computed_key(self: Base) -> None:
    keyed: Any = self.orders.key_by(lambda order: order.customer_id.lower())
    keyed.process(Untyped(), uid="first")


class Untyped(KeyedProcess):  # type: ignore[type-arg]
    def process(self, record: Any, ctx: Any) -> Any:
        return ()


def keyed_by(of: Any) -> Callable[[Any], object]:
    def define(self: Any) -> None:
        self.orders.key_by(lambda order: of(order.order_id), returns=of).process(
            Untyped(), uid="first"
        )

    return define


def key_of_another_type(self: Any) -> None:
    keyed = self.orders.key_by(lambda order: order.placed_at_ms)
    keyed.process(RunningTotal(), uid="total").to(self.totals)


def records_of_another_type(self: Any) -> None:
    by_customer(self).process(Totals(), uid="total").to(self.totals)


def record_type_unknown(self: Base) -> None:
    pairs = self.orders.map(lambda order: (order.order_id, order.amount * 2))
    pairs.key_by(lambda pair: pair[0], returns=str).process(Untyped(), uid="first")


def foreign_tag(self: Base) -> None:
    total(self).side_output(Tagged.unknown_country)


def class_for_object(self: Any) -> None:
    by_customer(self).process(RunningTotal, uid="total")


def keyed_function_without_key(self: Any) -> None:
    self.orders.process(RunningTotal())


def one_function_twice(self: Any) -> None:
    by_customer(self).process(SHARED, uid="one").to(self.totals)
    by_customer(self).process(SHARED, uid="two").to(self.totals)


def mixed_union(self: Any) -> None:
    self.orders.union(total(self)).to(self.totals)


def misspelt_method(self: Any) -> None:
    self.orders.fliter(lambda order: True)


def sink_is_a_source(self: Any) -> None:
    self.orders.to(self.orders)


def same_source_twice() -> None:
    source = KafkaSource("orders", value=Json(Order))
    declare(first=source, second=source, define=dangling)


def same_state_twice() -> None:
    state = ValueState(int, default=0)
    type("Function", (KeyedProcess,), {"first": state, "second": state})


def schema_file_missing() -> None:
    def define(self: Any) -> None:
        self.missing.to(self.copies)

    source = KafkaSource("orders", value=Avro(Order, schema="schemas/none.avsc"))
    sink = KafkaSink("copies", value=Json(Order))
    build(declare(base=Pipeline, missing=source, copies=sink, define=define))


def state_without_key() -> None:
    type("Function", (Process,), {"total": ValueState(int, default=0)})


def no_default() -> None:
    ValueState(int)  # type: ignore[call-overload]


def source(**options: Any) -> Callable[[], object]:
    return lambda: KafkaSource("orders", value=Json(Order), **options)


def sink(**options: Any) -> Callable[[], object]:
    return lambda: KafkaSink("orders", value=Json(Order), **options)


class Struct(msgspec.Struct):
    a: int


class OtherStruct(msgspec.Struct):
    b: int


class MayLack(TypedDict):
    a: NotRequired[int]


class ForCheckers(msgspec.Struct):
    a: Decimals  # type: ignore[name-defined]  # noqa: F821 - as if imported under TYPE_CHECKING


class Bits(enum.Flag):
    ONE = 1


class ReadsTooEarly(KeyedProcess[str, Order, CustomerTotal]):
    total = ValueState(int, default=0)

    def open(self) -> None:
        self.total.value += 1


class SetsUpItself(Base, name="case"):
    limit = Param(int, default=1)

    def __init__(self, params: dict[str, object]) -> None:
        self.twice = 2 * self.limit
        super().__init__(params)

    def define(self) -> None:
        dangling(self)


class Limited(Base, name="case"):
    limit = Param(int, help="how many, from 1", check=lambda value: value > 0)

    def define(self) -> None:
        dangling(self)


class Guarded(Base, name="case"):
    token = Param(str, help="of the shop", secret=True)

    def define(self) -> None:
        dangling(self)


def sink_made_in_define(self: Any) -> None:
    self.orders.to(KafkaSink("copies", value=Json(Order)))


def side_output_named_main() -> None:
    type("Function", (Process,), {"main": SideOutput(Order)})


CASES: dict[str, tuple[Callable[[], object], str]] = {
    "duplicate uid": (built(duplicate_uid), "uid 'total' is already used by the step at"),
    "uid of a source": (built(uid_of_a_source), "uid 'orders' is already used"),
    "uid with a dot": (built(lambda self: total(self, "a.b")), "uid='a.b' must be 1 to 80 lower"),
    "uid as we number": (built(lambda self: total(self, "map-1")), "have no uid; choose a name"),
    "sink made in define": (
        built(sink_made_in_define),
        "the declaration for topic 'copies' is not a class attribute of a pipeline",
    ),
    "dangling": (built(dangling), "'filter-1' go nowhere; end the chain with .to(sink)"),
    "nothing at all": (
        lambda: build(declare(base=Pipeline, define=lambda self: None)),
        "Pipeline 'case' writes to no sink; end a chain with .to(sink)",
    ),
    "sink unused": (built(no_sink), "Case.totals is declared and not used"),
    "key computed": (built(computed_key), ".key_by(..., returns=Type)"),
    "key changeable": (built(keyed_by(Changeable)), "Changeable can change; make it frozen"),
    "key by identity": (built(keyed_by(ByIdentity)), "ByIdentity compares by identity (eq=False)"),
    "key a float": (built(keyed_by(float)), "float is not a key"),
    "key of another type": (
        built(key_of_another_type),
        "step 'total' declares keys of str, key_by gives int",
    ),
    "records of another type": (
        built(records_of_another_type),
        "step 'total': Totals declares records of CustomerTotal, the stream has Order",
    ),
    "records unknown": (built(record_type_unknown), ".map(..., returns=Type)"),
    "foreign tag": (built(foreign_tag), "declares no side output 'unknown_country'"),
    "class for object": (built(class_for_object), "not the class RunningTotal"),
    "keyed without key": (built(keyed_function_without_key), "derived from Process here"),
    "one function twice": (built(one_function_twice), "belongs to the step 'one' at"),
    "foreign code": (
        lambda: KafkaSource("t", value=Json(Order), properties={"Plugin.Library.Paths": "evil.so"}),
        "is not allowed: librdkafka loads these libraries into the process. Remove it.",
    ),
    "mixed union": (built(mixed_union), "a union of streams of Order and CustomerTotal"),
    "misspelt method": (built(misspelt_method), "'Stream' object has no attribute 'fliter'"),
    "sink is a source": (built(sink_is_a_source), ".to() takes a KafkaSink"),
    "source twice": (same_source_twice, "Case.second is the same object as 'first'"),
    "state twice": (same_state_twice, "Function.second is the same object as Function.first"),
    "schema file missing": (schema_file_missing, "schemas/none.avsc does not exist"),
    "no define": (declare, "Case has no define()"),
    "side output named main": (side_output_named_main, "'main' is the name of the ordinary"),
    "state read too early": (
        lambda: ReadsTooEarly().open(),
        "State 'total' is only there while a record is processed; read it in process()",
    ),
    "state without key": (state_without_key, "Function.total: state belongs to a key"),
    "default of another type": (
        lambda: ValueState(int, default="0"),
        "default='0' is not of type int",
    ),
    "no default": (no_default, "needs default= or factory="),
    "shared default": (lambda: ValueState(list[int], default=[]), "write factory=list"),
    "shared record": (
        lambda: ValueState(Changeable, default=Changeable("a")),
        "write factory=Changeable",
    ),
    "map key": (lambda: MapState(list[int], int), "a list is not a key"),
    "no schema": (lambda: Json(NoSchema), "NoSchema has no schema; use a dataclass"),
    "no schema in a list": (lambda: ListState(list[NoSchema]), "NoSchema has no schema"),
    "recursive": (lambda: Json(Nested), "Nested.inner: Nested contains itself"),
    "bare list": (lambda: Json(list), "list does not say of what"),
    "key that may be missing": (
        lambda: Json(MayLack),
        "MayLack.a: a key that may be missing has no schema; make it required",
    ),
    "imported for checkers": (
        lambda: Json(ForCheckers),
        "ForCheckers: name 'Decimals' is not defined at run time; import it outside TYPE_CHECKING",
    ),
    "not a type": (lambda: Json(cast("Any", [int])), "[<class 'int'>] is not a type"),
    "flag": (lambda: Json(Bits), "Bits is a Flag, which has no schema; keep it as an int"),
    "literal of two types": (lambda: Json(Literal["a", 1]), "mixes types; use values of one type"),
    "dict of pairs": (
        lambda: Json(dict[tuple[int, int], str]),
        "the keys of a dict must be of a plain type to be stored",
    ),
    "empty tuple": (lambda: Json(tuple[()]), "tuple[()] has no parts and so no schema"),
    "Avro union": (
        lambda: Avro(Struct | list[int]).describe(),
        "Avro cannot tell Struct | list[int] apart; make every branch a record class",
    ),
    "untagged union": (lambda: Json(Struct | OtherStruct), "must be tagged"),
    "duration": (sink(linger="10 sec"), "linger: '10 sec' is not a duration"),
    "duration without a unit": (sink(linger=5), "topic 'orders': linger: 5 is not a duration"),
    "duration backwards": (sink(linger=timedelta(seconds=-1)), "is negative; a duration here"),
    "said twice": (
        sink(linger="1 s", properties={"linger.ms": 10}),
        "linger= and properties={'linger.ms': ...} say the same; write one only",
    ),
    "unknown compression": (
        sink(compression="brotli"),
        "compression='brotli' must be one of 'none', 'gzip'",
    ),
    "interval without a unit": (
        lambda: type("Case", (Base,), {}, name=None, checkpoint_interval=5.0),
        "Case: checkpoint_interval: 5.0 is not a duration",
    ),
    "param default": (lambda: Param(int, default="5"), "default='5' is not of type int"),
    "misspelt keyword of a sink": (
        sink(compresion="lz4"),
        "sink for topic 'orders' has no keyword 'compresion'; did you mean compression=?",
    ),
    "misspelt keyword of a source": (
        source(starting_offset="latest"),
        "has no keyword 'starting_offset'; did you mean starting_offsets=?",
    ),
    "keyword of an earlier version": (
        source(start="latest"),
        "has no keyword 'start'; its name is starting_offsets= now",
    ),
    "key function of an earlier version": (
        sink(key_by=str),
        "has no keyword 'key_by'; its name is record_key= now",
    ),
    "keyword of another declaration": (source(key_by=str), "no keyword 'key_by'; there are"),
    "unknown keyword": (
        source(speed=1),
        "no keyword 'speed'; there are dead_letter_topic, event_time",
    ),
    "keyword of records": (source(tombstones=True), "write KafkaSource.records(...)"),
    "topic without a name": (
        lambda: KafkaSource("", value=Json(Order)),
        "'' is no name of a topic",
    ),
    "topic with a space": (
        lambda: KafkaSink("a b", value=Json(Order)),
        "'a b' is no name of a topic",
    ),
    "topic as a folder": (lambda: KafkaSink("..", value=Json(Order)), "'..' is no name of a topic"),
    "topic for dead letters": (
        source(on_bad_record="dead_letter", dead_letter_topic="a/b"),
        "'a/b' is no name of a topic",
    ),
    "key that is no function": (
        sink(record_key="id"),
        "record_key='id' must be a function of the value",
    ),
    "sink of another type": (
        built(lambda self: self.orders.to(self.totals)),
        "the sink for topic 'totals' takes records of CustomerTotal, the stream has Order; map",
    ),
    "key format alone": (sink(key=Utf8()), "record_key must say what the key is"),
    "guarantee": (sink(guarantee="twice"), "guarantee='twice' must be one of 'exactly_once'"),
    "our setting": (sink(properties={"transactional.id": "x"}), "is set by tidegate"),
    "their setting": (source(properties={"group.id": "x"}), "it is tidegate.<job>.<source>"),
    "start": (
        source(starting_offsets="now"),
        "starting_offsets='now' must be 'earliest', 'latest', 'committed'",
    ),
    "start as a float": (
        source(starting_offsets=1.5),
        "starting_offsets=1.5 must be 'earliest', 'latest', 'committed'",
    ),
    "start as nothing": (source(starting_offsets=None), "starting_offsets=None must be 'earliest'"),
    "start by name": (
        source(starting_offsets={"0": 5}),
        "must be 'earliest', 'latest', 'committed'",
    ),
    "start before time": (source(starting_offsets=-1), "starting_offsets=-1 is no timestamp"),
    "start offsets": (source(starting_offsets={0: -5}), "has a negative partition or offset"),
    "dead letters nowhere": (source(on_bad_record="dead_letter"), "are given together"),
    "dead letters unasked": (source(dead_letter_topic="bad"), "are given together"),
    "policy": (source(on_bad_record="ignore"), "must be one of 'fail', 'skip', 'dead_letter'"),
    "name": (lambda: declare("Bad Name", define=dangling), "must be lower-case letters"),
    "name with a dot": (lambda: declare("a.b", define=dangling), "must be lower-case letters"),
    "source name": (lambda: declare(Orders=KafkaSource("o", value=Json(Order))), "Case.Orders"),
    "reserved name": (lambda: declare(graph=KafkaSource("o", value=Json(Order))), "Case.graph"),
    "parallelism": (
        lambda: type("Case", (Base,), {}, name=None, parallelism=200),
        "1 <= parallelism (200) <= max_parallelism (128)",
    ),
    "base": (lambda: build(Base), "is a base (name=None)"),
    "no such parameter": (
        lambda: build(OrderTotals, {"minimun": 5}),
        "no parameter 'minimun'. Did you mean 'minimum'? It has: minimum.",
    ),
    "parameter missing": (
        lambda: build(Limited),
        "Parameter 'limit' of Limited is required: --set limit=... (how many, from 1).",
    ),
    "secret parameter missing": (
        lambda: build(Guarded),
        "Parameter 'token' of Guarded is required: set TIDEGATE_PARAMS__TOKEN in the environment",
    ),
    "parameter not allowed": (
        lambda: build(Limited, {"limit": "0"}),
        "Parameter 'limit': 0 is not allowed (how many, from 1).",
    ),
    "parameter read too early": (
        lambda: SetsUpItself({}),
        "Parameter 'limit' of SetsUpItself has no value; give it one: SetsUpItself(limit=...)",
    ),
    "event time that is no function": (
        source(event_time="placed_at_ms"),
        "event_time='placed_at_ms' must be a function from a record to its time",
    ),
    "watermarks that are no strategy": (
        source(watermarks="10 s"),
        "watermarks='10 s' must be a strategy, as in watermarks=BoundedOutOfOrderness('10 s')",
    ),
    "malformed delay": (
        lambda: BoundedOutOfOrderness("1 hour"),
        "BoundedOutOfOrderness, delay: '1 hour' is not a duration",
    ),
    "negative idle_after": (
        lambda: Monotonous(idle_after=timedelta(seconds=-1)),
        "Monotonous, idle_after: datetime.timedelta",
    ),
    "malformed max_ahead": (
        lambda: Monotonous(max_ahead="soon"),
        "Monotonous, max_ahead: 'soon' is not a duration",
    ),
    "unknown keyword of a strategy": (
        lambda: Monotonous(idle="1 s"),  # type: ignore[call-arg]
        "no keyword 'idle'; there are idle_after, max_ahead",
    ),
    "max_ahead without event_time": (
        source(watermarks=Monotonous(max_ahead="1 d")),
        "max_ahead compares event_time with Kafka's timestamp, and the source has no event_time",
    ),
    "marker that is no function": (
        lambda: Punctuated("mark"),  # type: ignore[arg-type]
        "Punctuated('mark') takes a function from a record to its watermark or None",
    ),
    "unit of a header": (
        lambda: HeaderTime("at", unit="min"),  # type: ignore[arg-type]
        "unit='min'",
    ),
    "empty header": (lambda: HeaderTime(""), "the name of the header is empty"),
    "bad parameter": (
        lambda: build(OrderTotals, {"minimum": "five"}),
        "Parameter 'minimum': Invalid decimal string",
    ),
}

LATER: dict[str, Callable[[], object]] = {
    "ttl=": lambda: ValueState(Decimal, default=Decimal(0), ttl="30 d"),
    "map_batch": built(lambda self: self.orders.map_batch(len)),
    "map_arrow": built(lambda self: self.orders.map_arrow(len)),
    "map_async": built(lambda self: self.orders.map_async(len, uid="a")),
    "broadcast": built(lambda self: self.orders.broadcast()),
    "reduce": built(lambda self: by_customer(self).reduce(max, uid="a")),
    "interval_join": built(lambda self: by_customer(self).interval_join(None)),
    "as_of_join": built(lambda self: by_customer(self).as_of_join(None)),
    "connect_broadcast": built(lambda self: by_customer(self).connect_broadcast(None)),
    "BroadcastState": lambda: tidegate.BroadcastState,  # type: ignore[attr-defined]
    "Protobuf(Order)": lambda: Protobuf(Order),
}


@pytest.mark.parametrize("case", CASES)
def test_mistake_in_a_pipeline_is_refused_with_the_remedy(case: str) -> None:
    mistake, words = CASES[case]
    with pytest.raises(PipelineError) as caught:
        mistake()
    assert words in str(caught.value)
    assert "\n" not in str(caught.value), "one paragraph"


@pytest.mark.parametrize("what", LATER)
def test_feature_that_is_not_supported_is_refused_with_its_name_and_place(what: str) -> None:
    with pytest.raises(PipelineError) as caught:
        LATER[what]()
    assert f": {what} is not supported. " in str(caught.value)
    assert str(caught.value).startswith("tests/api/test_wrong_at_build.py:")


def test_error_of_a_step_gives_its_file_and_line() -> None:
    with pytest.raises(PipelineError) as caught:
        build(declare(define=dangling))
    line = dangling.__code__.co_firstlineno + 2
    assert str(caught.value).startswith(f"tests/api/test_wrong_at_build.py:{line}: ")


def test_error_of_an_exception_in_define_gives_its_file_and_line() -> None:
    with pytest.raises(PipelineError) as caught:
        build(declare(define=misspelt_method))
    line = misspelt_method.__code__.co_firstlineno + 1
    assert str(caught.value).startswith(f"test_wrong_at_build.py:{line}: Case.define() raised Attr")
    assert isinstance(caught.value.__cause__, AttributeError)
