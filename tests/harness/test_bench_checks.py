"""What the benchmark's check of an output must refuse: each error alone, in outputs that are right
but for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast
from zlib import crc32

import msgspec
import pytest

from integration.bench import loop, pipelines, workloads
from integration.bench.data import Click, records
from integration.bench.workloads import WORKLOADS, Workload, check_output
from tidegate.testing import PipelineTest, Setup

COUNT = 150_000
"""Enough for users to come again, and for windows to end."""
FEW = 2_000
SOME = 60_000
"""Enough for users with records in three of the short windows."""


@dataclass(frozen=True)
class Message:
    of_key: bytes
    of_value: bytes
    of_partition: int

    def key(self) -> bytes:
        return self.of_key

    def value(self) -> bytes:
        return self.of_value

    def partition(self) -> int:
        return self.of_partition


def output(workload: Workload, count: int) -> list[Message]:
    """A right one, partition after partition, as a reader may well get it."""
    made = [Message(key, value, crc32(key) % 4) for key, value in workload.expected(count)]
    return sorted(made, key=Message.partition)


def two_of(messages: list[Message], *, same_key: bool) -> tuple[int, int]:
    """Places of two messages of one partition, of one key or of two."""
    first: dict[bytes | int, int] = {}
    for place, message in enumerate(messages):
        group = message.key() if same_key else message.partition()
        earlier = first.setdefault(group, place)
        if earlier != place and (messages[earlier].key() == message.key()) == same_key:
            return earlier, place
    raise LookupError


@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=WORKLOADS)
def test_a_right_output_passes_however_its_partitions_are_interleaved(workload: Workload) -> None:
    messages = output(workload, FEW)
    check_output(workload, messages, FEW)
    other_way = sorted(messages, key=Message.partition, reverse=True)
    check_output(workload, other_way, FEW)


def test_windows_workload_has_output_that_passes_the_check() -> None:
    messages = output(WORKLOADS["windows"], COUNT)
    assert len(messages) > 20_000
    check_output(WORKLOADS["windows"], messages, COUNT)


@pytest.mark.parametrize("name", ["passthrough", "transform", "total", "shuffle"])
class TestAnOutputIsRefused:
    def test_with_a_record_missing(self, name: str) -> None:
        for place in (0, -1):
            messages = output(WORKLOADS[name], FEW)
            del messages[place]
            with pytest.raises(RuntimeError, match="1 records missing, 0 too many"):
                check_output(WORKLOADS[name], messages, FEW)

    def test_with_a_record_doubled(self, name: str) -> None:
        for place in (0, -1):
            messages = output(WORKLOADS[name], FEW)
            messages.append(messages[place])
            with pytest.raises(RuntimeError, match="0 records missing, 1 too many"):
                check_output(WORKLOADS[name], messages, FEW)

    def test_with_a_record_wrong(self, name: str) -> None:
        messages = output(WORKLOADS[name], FEW)
        old = messages[7]
        messages[7] = Message(old.key(), old.value() + b" ", old.partition())
        with pytest.raises(RuntimeError, match="1 records missing, 1 too many"):
            check_output(WORKLOADS[name], messages, FEW)

    def test_with_a_record_of_a_key_that_no_input_has(self, name: str) -> None:
        messages = [*output(WORKLOADS[name], FEW), Message(b"nobody", b"{}", 0)]
        with pytest.raises(RuntimeError, match="0 records missing, 1 too many"):
            check_output(WORKLOADS[name], messages, FEW)

    def test_with_two_records_of_a_key_in_the_wrong_order(self, name: str) -> None:
        messages = output(WORKLOADS[name], FEW)
        one, other = two_of(messages, same_key=True)
        messages[one], messages[other] = messages[other], messages[one]
        with pytest.raises(RuntimeError, match="out of order"):
            check_output(WORKLOADS[name], messages, FEW)

    def test_with_a_key_in_two_partitions(self, name: str) -> None:
        messages = output(WORKLOADS[name], FEW)
        one, _ = two_of(messages, same_key=True)
        old = messages[one]
        messages[one] = Message(old.key(), old.value(), (old.partition() + 1) % 4)
        with pytest.raises(RuntimeError, match="is in the partitions"):
            check_output(WORKLOADS[name], messages, FEW)


@pytest.mark.parametrize(("name", "refused"), [("passthrough", True), ("total", False)])
def test_order_of_two_keys_is_checked_only_if_the_workload_promises_it(
    name: str, refused: bool
) -> None:
    messages = output(WORKLOADS[name], FEW)
    one, other = two_of(messages, same_key=False)
    messages[one], messages[other] = messages[other], messages[one]
    if refused:
        with pytest.raises(RuntimeError, match="out of order in their partition"):
            check_output(WORKLOADS[name], messages, FEW)
    else:
        check_output(WORKLOADS[name], messages, FEW)


def shorten_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (loop, workloads):
        monkeypatch.setattr(module, "WINDOW_MS", 1_500)
        monkeypatch.setattr(module, "GAP_MS", 1_500)


def output_of_loop(
    workload: Workload, count: int, monkeypatch: pytest.MonkeyPatch
) -> list[Message]:
    """Return the records that the loop hands to its producer, with the partitions of their keys."""
    monkeypatch.setattr(loop, "_value", Message.value)
    found: list[Message] = []

    def produce(topic: str, value: bytes | None, key: bytes | None) -> None:
        assert topic == "sink"
        assert value is not None and key is not None  # noqa: PT018
        found.append(Message(key, value, crc32(key) % 4))

    step = loop.WORKLOADS[workload.loop](produce, "sink")
    sent = [Message(key, value, crc32(key) % 4) for key, value in records(count)]
    for start in range(0, count, 1_000):
        step(sent[start : start + 1_000])
    if hasattr(step, "finish"):
        cast("Any", step).finish()
    return found


@pytest.mark.parametrize("name", ["passthrough", "transform", "total"])
def test_loop_gives_the_output_that_is_expected(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    workload = WORKLOADS[name]
    check_output(workload, output_of_loop(workload, FEW, monkeypatch), FEW)


def test_loop_of_windows_emits_a_window_at_the_next_record_of_its_user(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shorten_windows(monkeypatch)
    found = output_of_loop(WORKLOADS["windows"], SOME, monkeypatch)
    assert len(found) > 5_000
    check_output(WORKLOADS["windows"], found, SOME)


@pytest.mark.parametrize("name", ["tumbling", "sessions"])
def test_loop_and_pipeline_of_windows_give_the_output_that_is_expected(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    workload = WORKLOADS[name]
    with monkeypatch.context() as shorter:
        shorten_windows(shorter)
        check_output(workload, output_of_loop(workload, SOME, monkeypatch), SOME)
    sent = [Message(key, value, crc32(key) % 4) for key, value in records(FEW)]
    pipeline = getattr(pipelines, workload.pipeline)
    sink = getattr(pipeline, workload.sink)
    with PipelineTest(pipeline, Setup(parallelism=2)) as test:
        decode = msgspec.json.Decoder(Click).decode
        test.source(pipeline.clicks).push(*(decode(message.of_value) for message in sent))
        test.drain()
        results = test.sink(sink).read()
    encode = msgspec.json.encode
    check_output(workload, [Message(each.user.encode(), encode(each), 0) for each in results], FEW)
