"""`open` and `close` of user functions: what they raise, and that everything is closed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import pytest

from tests.dataplane.test_operators import Collected, Dict, keyed, step
from tidegate.api.connectors.kafka_sink import KafkaSink
from tidegate.api.connectors.kafka_source import KafkaSource
from tidegate.api.functions import Context, KeyedProcess, Process, ProcessContext
from tidegate.api.pipeline import Pipeline, build
from tidegate.api.records.formats import Json
from tidegate.api.state.state import ValueState
from tidegate.dataplane.chain import ChainOutputs, OperatorChain
from tidegate.dataplane.operators.process import ProcessOperator
from tidegate.dataplane.sink_writer import SinkWriter
from tidegate.errors import UserCodeError
from tidegate.graph.plan import plan
from tidegate.graph.stream_graph import MAIN
from tidegate.stream_elements import RecordBatch


class Unreachable(KeyedProcess[str, tuple[str, int], int]):
    total = ValueState(int, default=0)

    def open(self) -> None:
        raise ConnectionError("the database is down")

    def process(self, record: tuple[str, int], ctx: Context[str]) -> Iterable[int]:
        return ()

    def close(self) -> None:
        raise OSError("it is down still")


class Client(Process[int, int]):
    def open(self) -> None:
        raise ConnectionError("the service is down")

    def process(self, record: int, ctx: ProcessContext) -> Iterable[int]:
        return ()

    def close(self) -> None:
        raise OSError("it is down still")


def test_error_in_open_or_close_of_user_code_names_the_step() -> None:
    operator, state = keyed(Unreachable(), Collected())
    closed: list[bool] = []
    state.close = lambda: closed.append(True)  # type: ignore[method-assign]
    with pytest.raises(UserCodeError, match=r"Totals: open\(\) of step uid 'total' .* is down"):
        operator.open()
    with pytest.raises(UserCodeError, match=r"close\(\) of step uid 'total' .*OSError: it is down"):
        operator.close()
    assert closed == [True], "the state is released all the same"
    process = ProcessOperator(
        "P", step("process", Client()), {MAIN: Collected().append}, now_ms=lambda: 0
    )
    with pytest.raises(UserCodeError, match=r"open\(\) of step 'process-1' .*ConnectionError"):
        process.open()
    with pytest.raises(UserCodeError, match=r"close\(\) of step 'process-1'"):
        process.close()


class NotWritten:
    """A leaf to which nothing comes."""

    def write(self, batch: RecordBatch) -> None:
        raise AssertionError(batch)


def test_error_in_close_of_one_function_does_not_prevent_close_of_the_others() -> None:
    closed: list[str] = []

    class Quiet(Process[int, int]):
        def process(self, record: int, ctx: ProcessContext) -> Iterable[int]:
            return (record,)

        def close(self) -> None:
            closed.append("quiet")

    class Twice(Pipeline, name="twice"):
        numbers = KafkaSource("numbers", value=Json(int))
        out = KafkaSink("out", value=Json(int))

        def define(self) -> None:
            self.numbers.process(Client()).process(Quiet()).to(self.out)

    graph = build(Twice)
    vertex = plan(graph, 1, 128).vertices[0]
    chain_outputs = ChainOutputs(
        record_writers=(),
        make_sink=lambda *_: cast("SinkWriter", NotWritten()),
        make_state=lambda _: Dict(Unreachable()),
    )
    chain = OperatorChain("Twice", graph, vertex, chain_outputs)
    with pytest.raises(UserCodeError, match=r"close\(\)"):
        chain.close()
    assert closed == ["quiet"]
