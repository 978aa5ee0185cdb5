"""What an attempt asks Kafka before it restores, on the fake brokers: topics that were created
again, logs that were truncated, and brokers that are temporarily behind.
"""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from tests.drivers.kafka.clocks import SleepingClock
from tests.simulator.kafka.cluster import FakeKafka
from tests.simulator.kafka.log import Record
from tidegate import Json, KafkaSink, KafkaSource, Pipeline, build
from tidegate.checkpoint.manifest import Manifest
from tidegate.checkpoint.state_metadata import SourceMetadata, StateMetadata
from tidegate.commit.confirmation import CONFIRMATION_S
from tidegate.config import Config
from tidegate.controlplane.journal.effect_runner import EffectRunner
from tidegate.controlplane.journal.restore_resolver import RestoreResolver
from tidegate.drivers.storage import open_store
from tidegate.drivers.threads import SystemThreads
from tidegate.errors import (
    KafkaNotAuthorisedError,
    NotAllowedError,
    RefusedError,
    SourceChangedError,
    TidegateError,
    is_recoverable,
)
from tidegate.ids import Attempt, CheckpointId, JobName, SubtaskIndex, Uid, VertexId
from tidegate.protocol.submission import PartitionEnd
from tidegate.protocol.subtask_snapshot import SourceSplit, SubtaskSnapshot
from tidegate.stream_elements import TopicPartition

BEGAN_S = 1000.0
OUTAGE_S = Config().checkpoint.tolerated_outage / 1000
T0 = TopicPartition("t", 0)
PLAN = StateMetadata(
    parallelism=1, max_parallelism=128, sources=(SourceMetadata(uid=Uid("a"), topic="t"),)
)


class World:
    """One job that reads topic `t`, and the brokers."""

    def __init__(
        self,
        start: Any = "earliest",
        *,
        bounded: bool = False,
        ends: tuple[PartitionEnd, ...] = (),
    ) -> None:
        class Copies(Pipeline, name="copies"):
            a = KafkaSource("t", value=Json(int), starting_offsets=start)
            b = KafkaSink("out", value=Json(int))

            def define(self) -> None:
                self.a.to(self.b)

        self.clock = SleepingClock(BEGAN_S)
        self.kafka = FakeKafka(self.clock)
        self.process = self.kafka.process("jobmaster", self.clock)
        self.heard: list[TidegateError] = []
        self._sequences: dict[int, int] = {}
        runner = EffectRunner(
            open_store("memory:///"),
            self.process.transaction_admin({}),
            self.clock,
            SystemThreads(),
            nonce=lambda: "nonce",
        )
        plan = SimpleNamespace(graph=build(Copies), state_metadata=PLAN)
        drivers = SimpleNamespace(kafka_admin=self._admin, clock=self.clock)
        submission = SimpleNamespace(job=JobName("copies"), id="s1", bounded=bounded, ends=ends)
        self.restoring = RestoreResolver(
            cast("Any", submission),
            cast("Any", plan),
            Config(),
            cast("Any", drivers),
            runner,
            self._hear,
        )
        self.while_asked: dict[int, Any] = {}
        """Actions to run when the job gets its n-th report of trouble, by n."""

    def waited_s(self) -> float:
        return self.clock.monotonic() - BEGAN_S

    def _admin(self, kafka: dict[str, str]) -> Any:
        return self.process.kafka_admin(kafka)

    def _hear(self, error: TidegateError) -> None:
        self.heard.append(error)
        self.while_asked.get(len(self.heard), lambda: None)()

    def create(self, records: int, partitions: int = 1) -> None:
        self.kafka.create_topic("t", partitions)
        self.write(records)

    def create_again(self, records: int, partitions: int = 1) -> None:
        self.kafka.delete_topic("t")
        self.create(records, partitions)

    def write(self, records: int) -> None:
        log = self.kafka.log(T0)
        producer_id = 1_000 + log.end + id(log) % 1_000_000
        values = [Record(b"1", None, (), 0)] * records
        log.append(producer_id, 0, 0, values, is_open=None)

    def offset(self, manifest: Manifest | None = None, **more: Any) -> int:
        """Where the job would read on."""
        ((split, *_),) = self.restoring.resolve(manifest, **more).splits
        return split.offset

    def checkpoint(self, offset: int, **split: Any) -> Manifest:
        """A checkpoint of what the job was given, read up to an offset."""
        ((given, *_),) = self.restoring.resolve(None).splits
        made = SourceSplit(
            source=given.source,
            topic=given.topic,
            partition=given.partition,
            offset=offset,
            topic_id=given.topic_id,
            leader_epoch=self.kafka.log(T0).epoch_at(offset - 1),
            **split,
        )
        part = SubtaskSnapshot(vertex=VertexId("v"), index=SubtaskIndex(0), splits=(made,))
        return Manifest(
            job=JobName("copies"),
            checkpoint=CheckpointId(Attempt(1), 1),
            submission_id="s0",
            created_ms=0,
            final=False,
            kafka_cluster="fake-kafka",
            fingerprint="f",
            plan=PLAN,
            subtasks=(part,),
        )

    def refusal(self, manifest: Manifest | None, repeated_s: float = CONFIRMATION_S) -> str:
        """The text of the refusal after Kafka has repeated its answer for so long."""
        before_s = self.clock.monotonic()
        with pytest.raises(RefusedError) as refused:
            self.restoring.resolve(manifest)
        assert repeated_s <= self.clock.monotonic() - before_s < repeated_s + 2
        assert self.heard, "the wait says why"
        return str(refused.value)


@pytest.mark.parametrize("records", [40, 400])
def test_recreated_topic_is_refused_whether_shorter_or_longer(records: int) -> None:
    world = World()
    world.create(100)
    checkpoint = world.checkpoint(100)
    world.create_again(records)
    said = world.refusal(checkpoint)
    assert "(topic id fake-topic-id-00000001) is offset 100" in said
    assert "with id fake-topic-id-00000002, in which partition 0 begins at offset 0" in said
    assert f"ends at offset {records}" in said


def test_restore_is_refused_if_the_topic_has_fewer_partitions() -> None:
    world = World()
    world.create(100)
    checkpoint = world.checkpoint(100)
    ((split,),) = (part.splits for part in checkpoint.subtasks)
    world.kafka._brokers.topics["t"] = []
    assert "has no partition 0" in world.refusal(checkpoint), split


def test_truncated_log_is_refused_even_if_it_grew_past_the_checkpoint_offset() -> None:
    world = World()
    world.create(100)
    checkpoint = world.checkpoint(100)
    world.kafka.log(T0).elect(90)
    assert "leader epoch 0, but the log of that epoch ends at offset 90" in world.refusal(
        checkpoint
    )
    world.write(50)
    assert "ends at offset 90, and the partition begins at offset 0 and ends at offset 140" in (
        world.refusal(checkpoint)
    )
    before_the_cut = world.checkpoint(80)
    assert world.offset(before_the_cut) == 80, "an older checkpoint reads on"


def test_clean_leader_election_does_not_refuse_the_restore() -> None:
    world = World()
    world.create(100)
    checkpoint = world.checkpoint(100)
    world.kafka.log(T0).elect()
    assert world.offset(checkpoint) == 100
    world.write(5)
    assert world.offset(world.checkpoint(103)) == 103
    assert not world.heard


def test_bounded_run_is_refused_if_the_checkpoint_offset_is_behind_the_log_end() -> None:
    world = World(bounded=True)
    world.create(100)
    checkpoint = world.checkpoint(100, end_offset=100)
    world.kafka.log(T0).elect(60)
    assert "ends at offset 60" in world.refusal(checkpoint)


def test_absent_topic_is_retried_for_the_tolerated_outage_and_then_refused() -> None:
    world = World()
    world.create(100)
    checkpoint = world.checkpoint(100)
    world.kafka.delete_topic("t")
    said = world.refusal(checkpoint, OUTAGE_S)
    assert "is offset 100, and Kafka has no topic of this name any more" in said
    assert said.endswith("Kafka has repeated this for 180 s (checkpoint.tolerated_outage).")


def test_absent_topic_of_a_first_start_is_retried_for_the_tolerated_outage() -> None:
    world = World()
    said = world.refusal(None, OUTAGE_S)
    assert re.search("topic of source 'a' .* cannot be read", said)


def test_absent_topic_is_refused_with_the_start_offset_before_the_first_checkpoint() -> None:
    world = World("latest")
    world.create(100)
    assert world.offset() == 100
    world.kafka.delete_topic("t")
    assert "is offset 100, and Kafka has no topic" in world.refusal(None, OUTAGE_S)


def test_restore_continues_if_rights_return_within_the_tolerated_outage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    world.create(100)
    checkpoint = world.checkpoint(40)
    denied = NotAllowedError("Grant the job's principal the right.")

    def deny(*_: object, **__: object) -> None:
        raise denied

    with monkeypatch.context() as patched:
        world.while_asked[100] = patched.undo
        patched.setattr("tidegate.controlplane.journal.restore_resolver.enumerate_partitions", deny)
        assert world.offset(checkpoint) == 40
    assert world.heard == [denied] * 100
    assert CONFIRMATION_S < world.waited_s() < OUTAGE_S


def test_a_topic_that_was_created_again_before_the_first_checkpoint_is_refused() -> None:
    world = World("latest")
    world.create(100)
    assert world.offset() == 100
    world.create_again(300)
    assert "with id fake-topic-id-00000002" in world.refusal(None)


def test_broker_that_is_behind_for_a_moment_does_not_refuse_the_restore() -> None:
    """A leader that was just elected has fewer records, and then all of them."""
    world = World()
    world.create(100)
    checkpoint, log = world.checkpoint(100), world.kafka.log(T0)
    entries = log._entries
    log._entries = entries[:70]

    def catch_up() -> None:
        log._entries = entries

    world.while_asked[15] = catch_up
    assert world.offset(checkpoint) == 100
    assert len(world.heard) == 15
    assert world.waited_s() < CONFIRMATION_S


def test_later_attempt_keeps_the_start_offset_of_the_first_attempt() -> None:
    world = World("latest")
    world.create(100)
    assert world.offset() == 100
    world.write(70)
    assert world.offset() == 100


def test_restore_to_another_cluster_keeps_the_checkpoint_offsets() -> None:
    world = World()
    world.create(100)
    checkpoint = world.checkpoint(100)
    world.create_again(300)
    world.kafka.log(T0).elect()
    assert world.offset(checkpoint, on_other_cluster=True) == 100


def test_rights_missing_beyond_the_tolerated_outage_fail_the_attempt_and_not_the_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    world.create(100)

    def deny(*_: object, **__: object) -> None:
        raise NotAllowedError("Grant the job's principal the right.")

    monkeypatch.setattr("tidegate.controlplane.journal.restore_resolver.enumerate_partitions", deny)
    with pytest.raises(KafkaNotAuthorisedError, match="has repeated this for 180 s") as ended:
        world.restoring.resolve(None)
    assert is_recoverable(ended.value)


def script(world: World, monkeypatch: pytest.MonkeyPatch, answers: list[tuple[float, str]]) -> None:
    """Let Kafka answer as the list says, each answer until its time in seconds.

    After the last time, the fake Kafka answers by itself.
    """
    resolve_once = RestoreResolver._resolve_once

    def scripted(self: RestoreResolver, *arguments: Any, **named: Any) -> Any:
        answer = next((each for until_s, each in answers if world.waited_s() < until_s), "")
        if answer == "denied":
            raise NotAllowedError("Grant the job's principal the right.")
        if answer:
            raise SourceChangedError("topic t seems to be gone", finding=answer)
        return resolve_once(self, *arguments, **named)

    monkeypatch.setattr(RestoreResolver, "_resolve_once", scripted)


def test_authorisation_errors_do_not_count_as_a_repeated_source_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An earlier version failed the job permanently at the second finding, 10 s later."""
    world = World()
    world.create(100)
    script(world, monkeypatch, [(1.0, "gone"), (11.0, "denied"), (13.0, "gone")])
    assert world.offset() == 0
    assert world.waited_s() >= 13.0


def test_authorisation_outage_restarts_if_kafka_answers_in_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An earlier version counted the time of the answers: refusals of 180 s end the attempt."""
    world = World()
    world.create(100)
    script(world, monkeypatch, [(100.0, "denied"), (105.0, "gone"), (200.0, "denied")])
    assert world.offset() == 0
    assert world.waited_s() >= 200.0


def end_of(partition: int, offset: int) -> PartitionEnd:
    return PartitionEnd(source=Uid("a"), topic="t", partition=partition, offset=offset)


def test_bounded_run_uses_the_end_offsets_that_the_client_chose() -> None:
    world = World(bounded=True, ends=(end_of(0, 70),))
    world.create(100)
    ((split,),) = world.restoring.resolve(None).splits
    assert (split.offset, split.end_offset) == (0, 70)


def test_a_partition_without_a_chosen_end_is_not_read() -> None:
    """It was added when the ends were chosen already."""
    world = World(bounded=True, ends=(end_of(0, 100),))
    world.create(100, partitions=2)
    (splits,) = world.restoring.resolve(None).splits
    assert [(each.partition, each.offset, each.end_offset) for each in splits] == [
        (0, 0, 100),
        (1, 0, 0),
    ]


def test_chosen_end_offset_beyond_the_log_end_is_refused_after_retries() -> None:
    world = World(bounded=True, ends=(end_of(0, 170),))
    world.create(100)
    assert "up to offset 170, but the partition begins at offset 0 and ends at offset 100" in (
        world.refusal(None)
    )


@pytest.mark.parametrize(
    ("before", "now", "logged"),
    [("2025b", "2026f", True), ("2026f", "2026f", False), ("", "2026f", False), ("a", "", False)],
)
def test_restore_with_another_tz_database_is_allowed_and_logged(
    before: str, now: str, logged: bool, caplog: pytest.LogCaptureFixture
) -> None:
    world = World()
    world.create(10)
    old = world.checkpoint(4)
    old = msgspec.structs.replace(old, plan=msgspec.structs.replace(PLAN, tz_database=before))
    plan = msgspec.structs.replace(PLAN, tz_database=now)
    cast("Any", world.restoring)._plan.state_metadata = plan
    assert world.offset(old) == 4
    found = [line for line in caplog.records if "tz database" in line.message]
    assert [(vars(line)["before"], vars(line)["now"]) for line in found] == (
        [(before, now)] if logged else []
    )
