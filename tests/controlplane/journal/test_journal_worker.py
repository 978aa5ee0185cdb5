"""The journal's thread: a job whose last publication may stand or not, and one without any."""

from __future__ import annotations

import queue
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from tests.commit.quiet import manifest
from tests.controlplane.journal.test_effect_runner import Clock, Log
from tidegate.checkpoint.manifest import Manifest
from tidegate.checkpoint.restore import RestorePlan
from tidegate.checkpoint.state_metadata import StateMetadata
from tidegate.commit.effects import (
    CreateEntry,
    DeleteObject,
    ListObjects,
    ListTransactions,
    Procedure,
    TopicIds,
)
from tidegate.commit.journal import claimed
from tidegate.commit.journal.reading import read_entry, read_journal
from tidegate.commit.lost_tail import commit_metadata
from tidegate.commit.publish import publish
from tidegate.config import Config
from tidegate.controlplane.journal import restore_resolver
from tidegate.controlplane.journal.effect_runner import EffectRunner, ProcedureStopped
from tidegate.controlplane.journal.journal_worker import (
    CheckpointNotPublished,
    JournalWorker,
    PublicationEvent,
)
from tidegate.drivers.storage import open_store
from tidegate.drivers.system import SystemEntropy
from tidegate.drivers.threads import SystemThreads
from tidegate.errors import (
    FencedError,
    JournalLostError,
    KafkaNotAuthorisedError,
    NotAllowedError,
    PipelineError,
    RefusedError,
    StorageError,
    UserCodeError,
)
from tidegate.ids import CheckpointId, JobName, JournalNumber, Uid
from tidegate.ports.kafka import GroupCommit
from tidegate.protocol.subtask_snapshot import SourceSplit
from tidegate.stream_elements import TopicPartition

NO_STATE = StateMetadata(parallelism=1, max_parallelism=128)


def work(
    posted: queue.SimpleQueue[Any], wanted: Callable[[], bool] = lambda: True
) -> JournalWorker:
    submission = SimpleNamespace(
        job=JobName("job"),
        id="s1",
        working_folder="/",
        restore="latest",
        accept_data_loss=False,
        take_over=False,
        restore_to_other_cluster=False,
        claimed_attempt=0,
        bounded=False,
        ends=(),
    )
    made = JournalWorker(
        cast("Any", submission),
        Config(),
        cast(
            "Any",
            SimpleNamespace(
                threads=SystemThreads(),
                entropy=SystemEntropy(),
                clock=Clock(),
                process=SimpleNamespace(host="control-1"),
            ),
        ),
        posted.put,
        wanted=wanted,
    )
    store = open_store("memory:///")
    made.journal.storage = cast(
        "Any", SimpleNamespace(wait_until_available=lambda _: None, identity="s", calls=None)
    )
    made.journal._effects = EffectRunner(
        store,
        cast("Any", Log()),
        Clock(),
        SystemThreads(),
        nonce=lambda: "nonce",
    )
    return made


def closed(made: JournalWorker, posted: queue.SimpleQueue[Any]) -> object:
    outcomes: list[object] = []
    made.close("failed", "", outcomes.append)
    posted.get(timeout=10)()
    return outcomes[0]


def test_journal_is_claimed_again_before_close_if_its_last_write_is_unknown() -> None:
    posted: queue.SimpleQueue[Any] = queue.SimpleQueue()
    made = work(posted)
    journal = made.journal._claim()
    journal.last_write_unknown = True
    made.journal.claimed = journal
    assert closed(made, posted) is None
    assert made.journal._runner().run(entries()) == 3, "two claims and the close"


def test_ownership_check_reports_an_attempt_fenced_by_its_successor() -> None:
    """If the slots began, no process would end their transactions after the successor had closed
    the job. The simulator found this with two JobManagers that both believed they led.
    """
    posted: queue.SimpleQueue[Any] = queue.SimpleQueue()
    made = work(posted)
    made.journal.claimed = made.journal._claim()
    outcomes: list[object] = []
    made.check_ownership(outcomes.append)
    posted.get(timeout=10)()
    assert outcomes == [None]
    successor = work(posted)
    successor.journal._effects = made.journal._effects
    successor.journal.claimed = successor.journal._claim()
    made.check_ownership(outcomes.append)
    posted.get(timeout=10)()
    assert isinstance(outcomes[1], FencedError)
    assert "fenced by attempt 2" in str(outcomes[1])


def test_ownership_check_detects_a_successor_whose_claim_was_truncated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    posted: queue.SimpleQueue[Any] = queue.SimpleQueue()
    made = work(posted)
    made.journal.claimed = made.journal._claim()

    def overtaken(_job: JobName, number: int) -> Procedure[bool]:
        assert number == 1
        yield from ()
        return True

    monkeypatch.setattr(claimed, "_is_superseded", overtaken)
    outcomes: list[object] = []
    made.check_ownership(outcomes.append)
    posted.get(timeout=10)()
    assert isinstance(outcomes[0], FencedError)


def test_ownership_check_passes_if_the_storage_does_not_answer() -> None:
    """One hiccup of the storage must not cost an attempt."""
    posted: queue.SimpleQueue[Any] = queue.SimpleQueue()
    made = work(posted)
    made.journal.claimed = made.journal._claim()
    outcomes: list[object] = []

    def fails(*_: object, **__: object) -> None:
        raise StorageError("no answer")

    cast("Any", made)._runner = lambda: SimpleNamespace(run=fails)
    made.check_ownership(outcomes.append)
    posted.get(timeout=10)()
    assert outcomes == [None]


def test_jobmaster_that_hung_in_its_first_claim_does_not_fence_its_successor() -> None:
    """Seen in the kill matrix: the JobMaster read further and claimed. The job then ended as
    fenced, although no other attempt had fenced it.
    """
    asked: list[bool] = []

    def wanted() -> bool:
        asked.append(len(asked) == 0)
        return asked[-1]

    made = work(queue.SimpleQueue(), wanted)
    actions, clock = made.journal._runner()._actions, made.journal._drivers.clock
    listing = actions[ListObjects]

    def list_very_slowly(effect: ListObjects) -> Any:
        clock.sleep(60.0)
        return listing(effect)

    actions[ListObjects] = list_very_slowly
    with pytest.raises(ProcedureStopped):
        made.journal._claim()
    assert asked == [True, False]
    assert made.journal._runner().run(entries()) == 0


def test_abandoned_publication_stops_retrying_its_topic_ids_request() -> None:
    """Rights were taken away: readers failed of it, and the publication asked for 30 s more."""
    posted: queue.SimpleQueue[Any] = queue.SimpleQueue()
    made = work(posted)
    journal = made.journal.claimed = made.journal._claim()
    published = at_offset(manifest(journal, 1), 7, topic_id="id")
    cast("Any", made.journal)._manifest = lambda *_: published
    asked: list[object] = []

    def denied(effect: TopicIds) -> Any:
        asked.append(effect)
        if len(asked) == 2:
            made.abandon()
        raise KafkaNotAuthorisedError("not allowed to describe it")

    made.journal._runner()._actions[TopicIds] = denied
    events: list[PublicationEvent] = []
    complete = SimpleNamespace(checkpoint=published.checkpoint, transactions=())
    made.publish(cast("Any", complete), events.append)
    while not events:
        posted.get(timeout=10)()
    assert events == [
        CheckpointNotPublished(checkpoint=published.checkpoint, reason="not allowed to describe it")
    ]
    assert len(asked) == 2


def test_claimed_journal_is_closed_without_another_claim() -> None:
    posted: queue.SimpleQueue[Any] = queue.SimpleQueue()
    made = work(posted)
    made.journal.claimed = made.journal._claim()
    assert closed(made, posted) is None
    assert made.journal._runner().run(entries()) == 2


def test_close_is_retried_after_a_storage_error() -> None:
    posted: queue.SimpleQueue[Any] = queue.SimpleQueue()
    made = work(posted)
    made.journal.claimed = made.journal._claim()
    actions = made.journal._runner()._actions
    create, failures = actions[CreateEntry], [StorageError("a hiccup")]

    def failing(effect: CreateEntry) -> Any:
        if failures:
            raise failures.pop()
        return create(effect)

    actions[CreateEntry] = failing
    assert closed(made, posted) is None
    assert made.journal._runner().run(entries()) == 2


def test_close_whose_reply_was_lost_is_not_repeated() -> None:
    posted: queue.SimpleQueue[Any] = queue.SimpleQueue()
    made = work(posted)
    made.journal.claimed = made.journal._claim()
    assert closed(made, posted) is None
    made.journal.claimed.last_write_unknown = True
    assert closed(made, posted) is None
    assert made.journal._runner().run(entries()) == 2, "it was not claimed again"


def test_zombie_sweep_is_skipped_while_another_one_runs() -> None:
    """Without a broker one takes for ever, and each ten seconds would bring another."""
    made = work(queue.SimpleQueue())
    made.journal.claimed = made.journal._claim()
    actions = made.journal._runner()._actions
    begun, listing, answers = queue.SimpleQueue[int](), [0], queue.SimpleQueue[Any]()

    def hanging(_: ListTransactions) -> Any:
        listing[0] += 1
        begun.put(listing[0])
        return answers.get(timeout=10)

    actions[ListTransactions] = hanging
    for _ in range(5):
        made.fence_zombies()
    assert begun.get(timeout=10) == 1
    answers.put({})
    made._zombie_fencing_pool.submit(lambda: begun.put(0))
    assert begun.get(timeout=10) == 0, "nothing has waited in between"
    made.fence_zombies()
    assert begun.get(timeout=10) == 2, "the next one is made"
    answers.put({})


def test_close_of_a_submission_without_a_claim_does_not_change_the_journal() -> None:
    """A refused run changes nothing, whatever an earlier run has left."""
    posted: queue.SimpleQueue[Any] = queue.SimpleQueue()
    made = work(posted)
    assert closed(made, posted) is None
    assert made.journal._runner().run(entries()) == 0, "nothing has run"
    made.journal._claim()
    later = work(posted)
    later.journal._submission = cast(
        "Any", SimpleNamespace(**{**vars(made.journal._submission), "id": "s2"})
    )
    later.journal._effects = made.journal._effects
    assert closed(later, posted) is None
    assert made.journal._runner().run(entries()) == 1, "the claim of another submission stands"


def test_job_without_a_plan_claims_and_closes_its_journal() -> None:
    """Its module cannot be imported any more, after a JobMaster was killed."""
    posted: queue.SimpleQueue[Any] = queue.SimpleQueue()
    first = work(posted)
    first.journal._claim()
    made = work(posted)
    made.journal._effects = first.journal._effects
    asked: list[object] = []
    with pytest.raises(PipelineError, match="no module"):
        made.journal._recover(PipelineError("there is no module"), asked.append)
    assert posted.empty(), "no slot is asked for"
    assert closed(made, posted) is None
    assert made.journal._runner().run(kinds()) == ["claim", "claim", "closed"]


def test_job_without_a_plan_that_has_never_run_makes_no_claim() -> None:
    made = work(queue.SimpleQueue())
    with pytest.raises(PipelineError, match="no module"):
        made.journal._recover(PipelineError("there is no module"), lambda _: None)
    assert made.journal._runner().run(entries()) == 0


def test_retryable_plan_error_does_not_close_the_journal() -> None:
    first = work(queue.SimpleQueue())
    first.journal._claim()
    made = work(queue.SimpleQueue())
    made.journal._effects, made.journal._claimed_attempt = (
        first.journal._effects,
        first.journal._claimed_attempt,
    )
    with pytest.raises(UserCodeError, match="is down"):
        made.journal._recover(UserCodeError("the database is down"), lambda _: None)
    assert made.journal._runner().run(kinds()) == ["claim", "claim"]


def test_submission_without_a_plan_that_has_not_run_makes_no_claim() -> None:
    """Its first claim compares the journal with the groups of the sources, which the plan names."""
    made = work(queue.SimpleQueue())
    with pytest.raises(UserCodeError, match="is down"):
        made.journal._recover(UserCodeError("the database is down"), lambda _: None)
    assert made.journal._runner().run(entries()) == 0


def test_job_without_a_plan_is_finished_if_its_final_checkpoint_is_published() -> None:
    made = work(queue.SimpleQueue())
    journal = made.journal._claim()
    made.journal._runner().run(publish(journal, manifest(journal, 1, final=True), ()))
    posted = cast("queue.SimpleQueue[Any]", made._post.__self__)  # type: ignore[attr-defined]
    assert made.journal._recover(PipelineError("there is no module"), lambda _: None).finished
    assert posted.empty(), "no slot is asked for"


@pytest.mark.parametrize("final", [True, False])
def test_recovery_with_a_published_final_checkpoint_does_not_ask_the_sources(
    final: bool,
) -> None:
    """Its topic may be gone by then; the job is finished all the same."""
    made = work(queue.SimpleQueue())
    journal = made.journal._claim()
    made.journal._runner().run(publish(journal, manifest(journal, 1, final=final), ()))

    def deleted(_: object) -> Any:
        raise RefusedError("there is no topic orders")

    cast("Any", made.journal._drivers).kafka_admin = deleted
    plan = cast("Any", SimpleNamespace(graph=[], state_metadata=NO_STATE))
    if final:
        assert made.journal._recover(plan, lambda _: None).finished
    else:
        with pytest.raises(RefusedError, match="no topic"):
            made.journal._recover(plan, lambda _: None)


def test_restored_manifest_of_another_kafka_cluster_is_refused_without_consent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rolling back during the recovery leads to an older manifest than the claim has checked."""
    made = work(queue.SimpleQueue())
    made.journal._plan = cast("Any", SimpleNamespace(graph=[], state_metadata=NO_STATE))
    cast("Any", made.journal._drivers).kafka_admin = lambda _: Admin()
    journal = made.journal._claim()
    older = msgspec.structs.replace(manifest(journal, 1), kafka_cluster="c0")
    made.journal._runner().run(publish(journal, older, ()))
    with pytest.raises(RefusedError, match=r"belongs to Kafka cluster c0, but .* cluster c1"):
        made.journal._make_restore_plan(journal)

    seen: list[bool] = []

    def restoring(*_: object, on_other_cluster: bool, **__: object) -> RestorePlan:
        seen.append(on_other_cluster)
        return RestorePlan(keyed=(), splits=(), new_partitions=())

    monkeypatch.setattr(restore_resolver, "restore", restoring)
    consented = JournalNumber(journal.state.number + 1)
    journal.state = msgspec.structs.replace(journal.state, moved=consented)
    made.journal._make_restore_plan(journal)
    made.journal._runner().run(publish(journal, manifest(journal, 2), ()))
    made.journal._make_restore_plan(journal)
    assert seen == [True, False]


def test_claim_is_refused_if_the_journal_of_an_earlier_claim_is_lost() -> None:
    """The consent of `take_over` is used up, and a job without transactions has no ids in Kafka."""
    made = work(queue.SimpleQueue())
    cast("Any", made.journal._submission).take_over = True
    made.journal._claim()
    runner = made.journal._runner()
    for path in runner.perform(ListObjects(prefix="job")):
        runner.perform(DeleteObject(path=path))
    with pytest.raises(JournalLostError, match="is not there in checkpoint"):
        made.journal._claim()
    assert runner.run(entries()) == 0

    restarted = work(queue.SimpleQueue())
    restarted.journal._effects, restarted.journal._claimed_attempt = runner, 1
    with pytest.raises(JournalLostError, match="is not mounted, or is an older copy"):
        restarted.journal._claim()
    assert runner.run(entries()) == 0


def with_offset(made: JournalWorker, counter: int, offset: int) -> None:
    journal = made.journal.claimed
    assert journal is not None
    made.journal._runner().run(publish(journal, at_offset(manifest(journal, counter), offset), ()))


def at_offset(published: Manifest, offset: int, topic_id: str = "") -> Manifest:
    split = SourceSplit(source=Uid("in"), topic="t", partition=0, offset=offset, topic_id=topic_id)
    (part,) = published.subtasks
    part = msgspec.structs.replace(part, splits=(split,))
    return msgspec.structs.replace(published, subtasks=(part,))


def test_restore_of_an_older_checkpoint_reports_the_offsets_to_be_read_again() -> None:
    made = work(queue.SimpleQueue())
    made.journal.claimed = made.journal._claim()
    with_offset(made, 1, 100)
    with_offset(made, 2, 250)
    again = work(queue.SimpleQueue())
    again.journal._effects = made.journal._effects
    submission = cast("Any", again.journal._submission)
    submission.id, submission.restore = "s2", "1-1"
    journal = again.journal._claim()
    assert again.journal._read_again(journal) == "t-0 offsets 100 to 249"
    submission.restore = "latest"
    assert again.journal._read_again(journal) == ""
    submission.restore = "1-1"
    journal.state_before_claim = msgspec.structs.replace(
        journal.state_before_claim, submission_id="s2"
    )
    assert again.journal._read_again(journal) == "", "it was told with the first attempt"


def test_first_claim_is_compared_with_the_offsets_of_the_consumer_groups(
    caplog: pytest.LogCaptureFixture,
) -> None:
    made = work(queue.SimpleQueue())
    plan = cast(
        "Any", SimpleNamespace(graph=[SimpleNamespace(kind="source", id="in", declaration=None)])
    )
    groups: list[str] = []

    class Groups(Admin):
        def group_commits(self, group: str) -> dict[TopicPartition, GroupCommit]:
            groups.append(group)
            metadata = commit_metadata("nonce", CheckpointId.parse("1-9"))
            return {TopicPartition("t", 0): GroupCommit(7, metadata)}

    cast("Any", made.journal._drivers).kafka_admin = lambda _: Groups()
    made.journal._claim_for(plan)
    made.journal._claim_for(plan)
    assert groups == ["tidegate.job.in"], "once for each process"
    successor = work(queue.SimpleQueue())
    successor.journal._effects = made.journal._effects
    cast("Any", successor.journal._drivers).kafka_admin = lambda _: Groups()
    with pytest.raises(JournalLostError, match="offsets of checkpoint 1-9"):
        successor.journal._claim_for(plan)

    class NotAllowed(Admin):
        def group_commits(self, group: str) -> dict[TopicPartition, GroupCommit]:
            raise NotAllowedError(f"no right on group {group}")

    cast("Any", successor.journal._drivers).kafka_admin = lambda _: NotAllowed()
    assert successor.journal._claim_for(plan).attempt == 3
    assert "the offsets of the consumer groups are not compared" in caplog.text


class Admin:
    """A topic of one partition, to which other producers write."""

    end = 0

    def partitions(self, topic: str) -> int:
        return 1

    def earliest(self, topic_partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(topic_partitions, 0)

    def latest(self, topic_partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(topic_partitions, self.end)

    def close(self) -> None:
        pass


def kinds() -> Procedure[list[str]]:
    number = yield from entries()
    found = []
    for each in range(1, number + 1):
        entry = yield from read_entry(JobName("job"), each)
        found.append(type(entry).__name__.lower())
    return found


def entries() -> Procedure[int]:
    state = yield from read_journal(JobName("job"))
    return state.number
