"""The step of a call that does not return: from a stack of Python, and from one of faulthandler."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from tidegate import Json, KafkaSink, KafkaSource, Pipeline
from tidegate.api.pipeline import build
from tidegate.dataplane.operators.stateless import FusedSteps
from tidegate.drivers.process import call_watch
from tidegate.drivers.process.call_watch import OsCallWatch
from tidegate.drivers.process.stack_pipes import QUIET_S, StackPipes
from tidegate.graph.plan import plan
from tidegate.ports.processes import LongCall, StackFrame
from tidegate.protocol.code_places import CodePlace, WatchedCode, dumped_frames
from tidegate.slot.user_code import places_of
from tidegate.stream_elements import RecordBatch, TopicPartition

MATCH = CodePlace("/job.py", 4, 6, "match", "map-1", "orders#0")
LOOP = CodePlace("<fused map-1 map-2>", 9, 9, "", "map-2", "orders#0")
CODE = WatchedCode(ordinal=0, thread=0x7F01, places=(MATCH, LOOP))

DUMP = """Timeout (0:00:06)!
Thread 0x00007f02 (most recent call first):
  File "/threading.py", line 1 in wait
Thread 0x00007f01 (most recent call first):
  File "/re.py", line 166 in match
  File "/job.py", line 5 in match
  File "<fused map-1>", line 4 in run
"""


def test_dump_gives_the_stack_of_the_watched_thread_with_the_oldest_call_first() -> None:
    assert dumped_frames(DUMP, 0x7F01) == [
        StackFrame("<fused map-1>", 4, "run"),
        StackFrame("/job.py", 5, "match"),
        StackFrame("/re.py", 166, "match"),
    ]


def test_first_frame_of_user_code_names_the_step_and_the_place() -> None:
    call = CODE.hanging_call(dumped_frames(DUMP, 0x7F01), 1_000)
    assert call is not None
    assert (call.step, call.subtask, call.place) == ("map-1", "orders#0", "/job.py:5, in match")
    said = "Step 'map-1' of subtask orders#0 has not returned for 33 s (/job.py:5, in match)"
    assert call.describe(34_000) == said
    assert "/re.py" in call.stack


def test_line_of_a_generated_loop_names_the_step_of_a_function_written_in_c() -> None:
    call = CODE.hanging_call([StackFrame("<fused map-1 map-2>", 9, "run")], 0)
    assert call is not None
    assert call.step == "map-2"


def test_function_of_two_steps_gives_the_names_of_both() -> None:
    other = CodePlace("/job.py", 4, 6, "match", "other", "other#0")
    code = WatchedCode(ordinal=0, thread=1, places=(MATCH, other))
    call = code.hanging_call([StackFrame("/job.py", 5, "match")], 0)
    assert call is not None
    assert call.step == "map-1 or other"


def test_stack_without_user_code_is_a_call_only_if_no_thread_can_run() -> None:
    frames = [StackFrame("/elsewhere.py", 1, "wait")]
    assert CODE.hanging_call(frames, 0) is None
    call = CODE.stalled_call(frames, 0)
    assert (call.step, call.subtask) == ("", "0")


def test_deep_stack_is_cut_in_the_middle() -> None:
    call = CODE.hanging_call([StackFrame("/job.py", 5, "match")] * 1_000, 0)
    assert call is not None
    assert "... 970 more calls ..." in call.stack


def keyed(order: dict[str, str]) -> str:
    return order["customer"]


class Orders(Pipeline, name="orders"):
    orders = KafkaSource("orders", value=Json(dict[str, str]))
    out = KafkaSink("out", value=Json(dict[str, str]), record_key=keyed)

    def define(self) -> None:
        self.orders.to(self.out)


def test_key_function_of_a_sink_has_a_place() -> None:
    graph = build(Orders, {})
    places = places_of([], graph, plan(graph, 2, 128), 1)
    (place,) = [place for place in places if place.function == "keyed"]
    assert (place.step, place.subtask) == ("out", "orders#1")
    assert place.contains(StackFrame(__file__, place.last, "keyed"))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_watch, "SAMPLE_INTERVAL_S", 0.02)
    monkeypatch.setattr(call_watch, "LONG_TURN_S", 0.05)
    monkeypatch.setattr(call_watch, "HANGING_AFTER_S", 0.3)


def watched(work: Callable[[], object], done: threading.Event) -> LongCall | None:
    """Return the call that a watch reports while a thread runs `work`."""
    found: list[Any] = []

    def run() -> None:
        watch = OsCallWatch(2, 3600.0)
        watch.turn_s = time.monotonic()
        found.append(watch)
        work()

    thread = threading.Thread(target=run)
    thread.start()
    call = None
    while call is None and thread.is_alive():
        time.sleep(0.02)
        call = found[0].long_call() if found else None
    done.set()
    thread.join()
    return call


@pytest.mark.usefixtures("quick")
def test_call_that_does_not_return_is_reported_with_its_stack() -> None:
    done = threading.Event()
    call = watched(lambda: done.wait(10), done)
    assert call is not None
    assert call.frames[-1].function == "wait"
    assert call.frames[-1].source


@pytest.mark.usefixtures("quick")
def test_watch_goes_on_if_the_system_refuses_the_thread_of_an_alarm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        message = "unable to start watchdog thread"
        raise RuntimeError(message)

    monkeypatch.setattr("faulthandler.dump_traceback_later", refuse)
    done = threading.Event()
    assert watched(lambda: done.wait(10), done) is not None


def short(order: dict[str, str]) -> dict[str, str]:
    time.sleep(0.01)
    return order


class Mapped(Pipeline, name="mapped"):
    orders = KafkaSource("orders", value=Json(dict[str, str]))
    out = KafkaSink("out", value=Json(dict[str, str]))

    def define(self) -> None:
        self.orders.map(short).to(self.out)


@pytest.mark.usefixtures("quick")
def test_long_batch_of_short_calls_is_not_reported() -> None:
    """Each call of the user's function has a frame of its own."""
    values: list[Any] = [{}] * 150
    batch = RecordBatch(values, list(range(150)), TopicPartition("orders", 0), None)
    node = build(Mapped, {}).nodes["map-1"]
    steps = FusedSteps("mapped", [node], lambda _: None)
    assert watched(lambda: steps.process(batch), threading.Event()) is None


class Slept(Pipeline, name="slept"):
    seconds = KafkaSource("seconds", value=Json(float))
    out = KafkaSink("out", value=Json(None))

    def define(self) -> None:
        self.seconds.map(time.sleep, returns=type(None)).to(self.out)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("seconds", "reported"), [([0.01] * 150, False), ([1.5], True)])
def test_call_of_a_function_written_in_c_is_reported_if_it_is_long(
    seconds: list[float], reported: bool
) -> None:
    offsets = list(range(len(seconds)))
    batch = RecordBatch(list(seconds), offsets, TopicPartition("seconds", 0), None)
    node = build(Slept, {}).nodes["map-1"]
    steps = FusedSteps("slept", [node], lambda _: None)
    call = watched(lambda: steps.process(batch), threading.Event())
    assert (call is not None) is reported


def test_dump_before_the_description_keeps_it_from_no_later_dump() -> None:
    """The import of user code held up all threads."""
    pipes = StackPipes()
    read_end, write_end = os.pipe()
    pipes.add(read_end, index=1, pid=7)
    found = []
    for text in (b"Timeout 1!\n", b'{"ordinal":1}\n', b"Timeout 2!\n"):
        os.write(write_end, text)
        pipes.read(read_end)
        time.sleep(QUIET_S * 1.1)
        found += [(dump.code, dump.text) for dump in pipes.complete()]
    assert found == [("", "Timeout 1!\n"), ('{"ordinal":1}', "Timeout 2!\n")]
    os.close(write_end)
    pipes.read(read_end)


def test_pipe_gives_each_dump_once_with_the_description_of_the_code() -> None:
    pipes = StackPipes()
    read_end, write_end = os.pipe()
    pipes.add(read_end, index=1, pid=7)
    os.write(write_end, b'{"ordinal":1}\n')
    pipes.read(read_end)
    assert pipes.wait_s() is None
    os.write(write_end, b"Timeout!\n")
    pipes.read(read_end)
    assert pipes.wait_s() == QUIET_S
    assert pipes.complete() == []
    time.sleep(QUIET_S * 1.1)
    (dump,) = pipes.complete()
    assert (dump.index, dump.pid, dump.code, dump.text) == (1, 7, '{"ordinal":1}', "Timeout!\n")
    assert pipes.complete() == []
    os.close(write_end)
    pipes.read(read_end)
    assert pipes.descriptors() == []
