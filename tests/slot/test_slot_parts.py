"""Parts of a slot process that need no cluster: mailbox, folders, which sources keep their keys."""

from __future__ import annotations

import gc
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.dataplane.channels.parts import edge
from tidegate.api.connectors.kafka_sink import KafkaSink
from tidegate.api.connectors.kafka_source import KafkaSource
from tidegate.api.pipeline import Pipeline, build
from tidegate.api.records.formats import Raw
from tidegate.config import Config
from tidegate.dataplane.chain import ChainOutputs, OperatorChain
from tidegate.dataplane.channels.input_gate import InputChannel
from tidegate.dataplane.channels.record_writer import (
    ForwardWriter,
    KeyGroupWriter,
    LocalOutputChannel,
)
from tidegate.dataplane.counters import Counters
from tidegate.dataplane.engine import Engine, Mailbox
from tidegate.dataplane.state.local_state_dir import LocalStateDir
from tidegate.dataplane.task_builder import most_receivers, source_keys_wanted
from tidegate.drivers.clock import SystemClock
from tidegate.drivers.process.current import OsProcess
from tidegate.drivers.threads import SystemThreads
from tidegate.graph.plan import plan
from tidegate.ids import Attempt, CheckpointId, JobName, SubtaskIndex
from tidegate.protocol.messages import SlotHeartbeat, TasksReady
from tidegate.protocol.slot_metrics import SlotMetrics
from tidegate.slot import main as slot_main
from tidegate.slot.idle_wait import LONGEST_S, SHORTEST_S, UNNOTICEABLE_S
from tidegate.slot.main import DUE_WAIT_MIN_S, Slot, log_generated_code
from tidegate.slot.progress_news import ProgressNews

UNWATCHED = SimpleNamespace(turn_s=0.0, long_call=lambda: None)


def test_mailbox_runs_an_action_that_an_action_posted_in_the_next_round() -> None:
    mailbox, story = Mailbox(SystemThreads()), []

    def first() -> None:
        story.append("first")
        mailbox.post(lambda: story.append("posted by first"))

    mailbox.post(first)
    mailbox.post(lambda: story.append("second"))
    mailbox.run_posted()
    assert story == ["first", "second"]
    mailbox.run_posted()
    assert story == ["first", "second", "posted by first"]


def test_a_post_wakes_a_waiting_mailbox() -> None:
    mailbox = Mailbox(SystemThreads())
    threading.Timer(0.05, lambda: mailbox.post(lambda: None)).start()
    began = time.monotonic()
    mailbox.wait(10)
    assert time.monotonic() - began < 5


class Kept(Pipeline, name="kept"):
    """One sink keeps source keys, the other makes its own."""

    kept_source = KafkaSource("a", value=Raw())
    keyed_source = KafkaSource("b", value=Raw())
    kept = KafkaSink("c", value=Raw())
    keyed = KafkaSink("d", value=Raw(), record_key=lambda value: value)

    def define(self) -> None:
        self.kept_source.filter(bool).map(lambda value: value).to(self.kept)
        self.keyed_source.to(self.keyed)


def test_source_keys_are_carried_only_if_a_sink_without_record_key_is_reached() -> None:
    graph = build(Kept)
    assert source_keys_wanted(graph, "kept_source")
    assert not source_keys_wanted(graph, "keyed_source")


def test_generated_code_of_a_subtask_is_logged_only_at_debug_level(
    caplog: pytest.LogCaptureFixture,
) -> None:
    graph = build(Kept)
    sink: Any = SimpleNamespace(write=None)
    chain_outputs = ChainOutputs(
        record_writers=(), make_sink=lambda *_: sink, make_state=cast("Any", None)
    )
    task: Any = SimpleNamespace(
        subtask="kept_source-0",
        chain=OperatorChain("Kept", graph, plan(graph, 1, 128).vertices[0], chain_outputs),
    )
    with caplog.at_level(logging.INFO):
        log_generated_code(task)
    assert caplog.messages == []
    with caplog.at_level(logging.DEBUG):
        log_generated_code(task)
    assert "\n".join(caplog.messages) + "\n" == task.chain.fused[0].source
    (line,) = [text for text in caplog.messages if "filter" in text][:1]
    assert line.split(", tests")[0] == "            if not f0(v): continue  # filter-1: bool"
    assert vars(caplog.records[4])["fused"] == 5


def test_slot_does_not_wait_for_records_while_actions_are_in_its_mailbox() -> None:
    """The rows that a snapshot has yet to save are posted turn by turn, and must not take a wait
    each.
    """
    waits: list[float] = []

    class Idle:
        """A source whose partitions are at their ends."""

        subtask = None
        due_in_s = staticmethod(lambda: math.inf)

        def reads(self) -> bool:
            return True

        def step(self, timeout_s: float) -> bool:
            if timeout_s:
                waits.append(timeout_s)
                slot._exit_code = 0
            return False

        def flush(self) -> None:
            pass

        def connection_error(self) -> str:
            return ""

        def lag(self) -> int:
            return 0

    slot: Any = Slot.__new__(Slot)
    slot._calls = UNWATCHED
    slot._config, slot._drivers = Config(), SimpleNamespace(clock=SystemClock())
    slot._counters, slot._news = Counters(), ProgressNews()
    slot._engine = Engine(SystemThreads(), slot._fail)
    slot._mailbox = slot._engine.mailbox
    slot._tasks = slot._sources = [Idle()]
    slot._exit_code, slot._failed, slot._lag, slot._has_remote_inputs = None, False, None, True
    slot._waited_s = slot._measured_s = 0.0
    left = 5

    def go_on() -> None:
        nonlocal left
        assert not waits
        left -= 1
        if left:
            slot._mailbox.post(go_on)

    slot._mailbox.post(go_on)
    slot._loop()
    assert (left, len(waits)) == (0, 1)


def run_loop(slot: Any, source: object, now_s: Callable[[], float]) -> None:
    """Run the loop of a slot that has one source and this clock."""
    slot._config, slot._counters, slot._news = Config(), Counters(), ProgressNews()
    slot._drivers = SimpleNamespace(clock=SimpleNamespace(monotonic=now_s))
    slot._engine = Engine(SystemThreads(), slot._fail)
    slot._mailbox = slot._engine.mailbox
    slot._tasks = slot._sources = [source]
    slot._exit_code, slot._failed, slot._lag, slot._has_remote_inputs = None, False, None, True
    slot._waited_s = slot._measured_s = 0.0
    slot._loop()


@pytest.mark.parametrize(
    ("what", "wait_s"),
    [("a batch", SHORTEST_S), ("a barrier", UNNOTICEABLE_S), ("a message", UNNOTICEABLE_S)],
)
def test_batch_barrier_or_message_after_a_long_silence_makes_the_next_wait_short(  # noqa: C901
    what: str, wait_s: float
) -> None:
    """Each wait is what a barrier, or a record from another slot, comes later."""
    slot: Any = Slot.__new__(Slot)
    slot._calls = UNWATCHED
    waits, now_s, has_come = list[float](), 0.0, False

    class Silent:
        """A source that is silent for twenty seconds."""

        subtask = None
        due_in_s = staticmethod(lambda: math.inf)

        def slowest_watermark(self) -> None: ...

        def reads(self) -> bool:
            return True

        def step(self, timeout_s: float) -> bool:
            nonlocal now_s, has_come
            now_s += timeout_s
            if timeout_s:
                waits.append(timeout_s)
                slot._exit_code = 0 if has_come else None
                return False
            if has_come or now_s < 20:
                return False
            has_come = True
            if what == "a batch":
                slot._counters.batches += 1
            elif what == "a message":
                slot._mailbox.post(lambda: None)
            return what != "a message"

        def flush(self) -> None:
            pass

        def connection_error(self) -> str:
            return ""

        def lag(self) -> int:
            return 0

    run_loop(slot, Silent(), lambda: now_s)
    assert waits[-2:] == [LONGEST_S, wait_s]


@pytest.mark.parametrize(
    ("due_in_s", "wait_s"),
    [(0.03, 0.03), (0.0, DUE_WAIT_MIN_S), (-5.0, DUE_WAIT_MIN_S), (9.0, LONGEST_S)],
)
def test_slot_waits_for_records_no_longer_than_until_a_task_has_something_due(
    due_in_s: float, wait_s: float
) -> None:
    slot: Any = Slot.__new__(Slot)
    slot._calls = UNWATCHED
    waits, now_s = list[float](), 0.0

    class Silent:
        """A source without records for twenty seconds, until a watermark is nearly due."""

        subtask = None

        def due_in_s(self) -> float:
            return due_in_s if now_s >= 20 else math.inf

        def slowest_watermark(self) -> None: ...

        def reads(self) -> bool:
            return True

        def step(self, timeout_s: float) -> bool:
            nonlocal now_s
            if timeout_s:
                waits.append(timeout_s)
                slot._exit_code = 0 if now_s >= 20 else None
                now_s += timeout_s
            return False

        def flush(self) -> None: ...

        def connection_error(self) -> str:
            return ""

        def lag(self) -> int:
            return 0

    run_loop(slot, Silent(), lambda: now_s)
    assert waits[-2:] == [LONGEST_S, wait_s]


def test_slot_reports_its_first_record_after_an_idle_time_at_once() -> None:
    slot: Any = Slot.__new__(Slot)
    slot._calls = UNWATCHED
    slot._start = SimpleNamespace(job=JobName("job"), attempt=Attempt(1), ordinal=3)
    sent: list[Any] = []
    slot._send, slot._metrics = sent.append, lambda: SlotMetrics(records_in=1)
    turns = 0

    class Reading:
        """A source that reads a record in each of its turns, after two checkpoints without any."""

        subtask = None

        def step(self, timeout_s: float) -> bool:
            nonlocal turns
            turns += 1
            if turns == 1:
                for counter in (1, 2):
                    slot._news.acknowledged(CheckpointId(Attempt(1), counter), 0)
            else:
                slot._counters.records_in += 1
            slot._exit_code = 0 if turns == 5 else None
            return True

    run_loop(slot, Reading(), lambda: 0.0)
    assert [(type(each), each.ordinal, each.metrics.records_in) for each in sent] == [
        (SlotHeartbeat, 3, 1)
    ]


def test_slot_is_busy_if_it_waits_for_records_less_than_half_of_the_time() -> None:
    slot: Any = Slot.__new__(Slot)
    slot._calls = UNWATCHED
    now_s, reading = 100.0, True

    class Waiting:
        """A source without a record."""

        subtask = None

        def slowest_watermark(self) -> None: ...

        def reads(self) -> bool:
            return reading

        def step(self, timeout_s: float) -> bool:
            nonlocal now_s
            now_s += timeout_s
            return False

        def connection_error(self) -> str:
            return ""

        def lag(self) -> int:
            return 7

    slot._drivers = SimpleNamespace(clock=SimpleNamespace(monotonic=lambda: now_s))
    slot._mailbox, slot._counters = Mailbox(SystemThreads()), Counters()
    slot._sources, slot._failed = [Waiting(), Waiting()], False
    slot._tasks = slot._sources
    slot._waited_s, slot._measured_s, slot._busy = 0.0, now_s, False

    def told(waited_s: float, busy_s: float) -> bool:
        nonlocal now_s
        slot._wait(waited_s)
        now_s += busy_s
        slot._update_lag()
        assert slot._metrics().lag == 14
        return bool(slot._metrics().busy)

    assert told(0.3, 0.4)
    assert not told(0.4, 0.3)
    assert not told(0.0, 0.01), "too soon to say"
    assert told(0.1, 0.14), "and that counts with the next"
    assert not told(0.4, 0.3)
    reading = False
    assert told(0.0, 0.3)
    slot._mailbox.post(lambda: None)
    assert told(0.2, 0.1), "a wait for a way out is no wait for records"


def test_most_receivers_is_the_channel_count_of_the_widest_record_writer() -> None:
    ways = [LocalOutputChannel(InputChannel(edge(), SubtaskIndex(0), 8)) for _ in range(3)]
    forward = ForwardWriter(ways[0])
    keyed = KeyGroupWriter(lambda value: value, str.encode, 128, ways, step="orders")
    assert most_receivers([]) == 1
    assert most_receivers([forward]) == 1
    assert most_receivers([forward, keyed]) == 3


@pytest.fixture
def _own_garbage() -> Iterator[None]:
    """The settings of the collector are the process's: they are put back."""
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


@pytest.mark.usefixtures("_own_garbage")
def test_deployed_slot_collects_garbage_rarely_and_not_objects_loaded_by_open(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The user's modules, and what `open` loads, come before; the first record comes after."""
    loaded: list[list[object]] = []

    def tracked() -> bool:
        return any(each is loaded[0] for each in gc.get_objects())

    sent: list[tuple[object, bool]] = []
    chain = SimpleNamespace(fused=(), open=lambda: loaded.append([object()]))
    assembly = SimpleNamespace(
        plan=None, graph=(), tasks=lambda _channels: [SimpleNamespace(chain=chain)]
    )
    monkeypatch.setattr(slot_main, "TaskBuilder", lambda *_: assembly)
    monkeypatch.setattr(slot_main, "SlotContext", lambda **_: None)
    channels = SimpleNamespace(connect=lambda *_, **__: None)
    monkeypatch.setattr(slot_main, "SlotChannels", lambda *_, **__: channels)
    anything: Any = SimpleNamespace(
        _tasks=[],
        _config=Config(),
        _drivers=SimpleNamespace(process=OsProcess()),
        _describe_code=lambda _: None,
        _required_exchange=lambda: None,
        _counters=None,
        _make_local_state_dir=lambda _journal: LocalStateDir(tmp_path, 1, "0-1"),
        _engine=None,
        _peer_lost=None,
        _send=lambda message: sent.append((message, tracked())),
    )
    deploy: Any = SimpleNamespace(job="job", attempt=1, ordinal=0, journal_id="j1", peers=("a",))
    Slot._deploy(anything, deploy)
    assert sent == [(TasksReady(job=deploy.job, attempt=deploy.attempt, ordinal=0), False)]
    assert not anything._has_remote_inputs, "there is nobody who might send"
    anything._tasks, deploy.peers = [], ("a", "b")
    Slot._deploy(anything, deploy)
    assert anything._has_remote_inputs
    assert gc.get_threshold() == (200_000, 50, 50)
    assert gc.isenabled()
