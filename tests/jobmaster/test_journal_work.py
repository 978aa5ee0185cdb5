"""The journal's thread: a job whose last publication may stand or not, and one without any."""

from __future__ import annotations

import queue
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.checkpoint.quiet import manifest
from tests.jobmaster.test_effects import Clock, Log
from tidegate.api.formats import Utf8
from tidegate.api.kafka import KafkaSource
from tidegate.checkpoint.effects import CreateEntry, ListObjects, ListTransactions, Procedure
from tidegate.checkpoint.plan_facts import PlanFacts
from tidegate.checkpoint.procedures import own_journal, publish, read_journal
from tidegate.config import Config
from tidegate.controlplane.jobmaster.effects import EffectRunner, ProcedureStopped
from tidegate.controlplane.jobmaster.journal_work import JournalWork
from tidegate.drivers.entropy import SystemEntropy
from tidegate.drivers.storage import open_store
from tidegate.drivers.threads import SystemThreads
from tidegate.elements import Origin
from tidegate.errors import DeposedError, RefusedError, StorageError
from tidegate.ids import JobName


def work(posted: queue.SimpleQueue[Any], wanted: Callable[[], bool] = lambda: True) -> JournalWork:
    submission = SimpleNamespace(
        job=JobName("job"),
        id="s1",
        restore="latest",
        accept_loss=False,
        take_over=False,
        bounded=False,
    )
    made = JournalWork(
        cast("Any", submission),
        cast("Any", SimpleNamespace(config=Config())),
        cast(
            "Any", SimpleNamespace(threads=SystemThreads(), entropy=SystemEntropy(), clock=Clock())
        ),
        posted.put,
        wanted=wanted,
    )
    made._effects = EffectRunner(
        open_store("memory:///"),
        cast("Any", Log()),
        Clock(),
        SystemThreads(),
        nonce=lambda: "nonce",
    )
    return made


def closed(made: JournalWork, posted: queue.SimpleQueue[Any]) -> object:
    outcomes: list[object] = []
    made.close("failed", outcomes.append)
    posted.get(timeout=10)()
    return outcomes[0]


def test_a_journal_in_doubt_is_claimed_anew_before_it_is_closed() -> None:
    posted: queue.SimpleQueue[Any] = queue.SimpleQueue()
    made = work(posted)
    journal = made._claim()
    journal.in_doubt = True
    made._journal = journal
    assert closed(made, posted) is None
    assert made._runner().run(entries()) == 3, "two claims and the close"


def test_an_attempt_that_was_deposed_while_it_waited_for_slots_is_told_before_they_begin() -> None:
    """What they opened after its successor had closed the job, nobody would end. Seen in the
    simulator, with two JobManagers of which each thought that it led.
    """
    posted: queue.SimpleQueue[Any] = queue.SimpleQueue()
    made = work(posted)
    made._journal = made._claim()
    outcomes: list[object] = []
    made.confirm(outcomes.append)
    posted.get(timeout=10)()
    assert outcomes == [None]
    successor = work(posted)
    successor._effects = made._effects
    successor._journal = successor._claim()
    made.confirm(outcomes.append)
    posted.get(timeout=10)()
    assert isinstance(outcomes[1], DeposedError)
    assert "attempt 2 has claimed the job" in str(outcomes[1])


def test_a_successor_whose_claim_was_trimmed_is_seen_too(monkeypatch: pytest.MonkeyPatch) -> None:
    posted: queue.SimpleQueue[Any] = queue.SimpleQueue()
    made = work(posted)
    made._journal = made._claim()

    def overtaken(_job: JobName, number: int) -> Procedure[bool]:
        assert number == 1
        yield from ()
        return True

    monkeypatch.setattr(own_journal, "_overtaken", overtaken)
    outcomes: list[object] = []
    made.confirm(outcomes.append)
    posted.get(timeout=10)()
    assert isinstance(outcomes[0], DeposedError)


def test_without_an_answer_whose_the_job_is_slots_begin() -> None:
    """One hiccup of the storage must not cost an attempt."""
    posted: queue.SimpleQueue[Any] = queue.SimpleQueue()
    made = work(posted)
    made._journal = made._claim()
    outcomes: list[object] = []

    def fails(*_: object, **__: object) -> None:
        raise StorageError("no answer")

    cast("Any", made)._runner = lambda: SimpleNamespace(run=fails)
    made.confirm(outcomes.append)
    posted.get(timeout=10)()
    assert outcomes == [None]


def test_one_that_stood_still_in_its_first_claim_does_not_push_out_its_successor() -> None:
    """Seen in the kill matrix: it read on, claimed, and the job ended as deposed by nobody."""
    asked: list[bool] = []

    def wanted() -> bool:
        asked.append(len(asked) == 0)
        return asked[-1]

    made = work(queue.SimpleQueue(), wanted)
    actions, clock = made._runner()._actions, made._drivers.clock
    listing = actions[ListObjects]

    def standing_still(effect: ListObjects) -> Any:
        clock.sleep(60.0)
        return listing(effect)

    actions[ListObjects] = standing_still
    with pytest.raises(ProcedureStopped):
        made._claim()
    assert asked == [True, False]
    assert made._runner().run(entries()) == 0


def test_a_journal_that_is_known_is_closed_by_the_attempt_that_holds_it() -> None:
    posted: queue.SimpleQueue[Any] = queue.SimpleQueue()
    made = work(posted)
    made._journal = made._claim()
    assert closed(made, posted) is None
    assert made._runner().run(entries()) == 2


def test_a_storage_that_fails_once_does_not_make_a_failed_job_of_a_finished_one() -> None:
    posted: queue.SimpleQueue[Any] = queue.SimpleQueue()
    made = work(posted)
    made._journal = made._claim()
    actions = made._runner()._actions
    create, failures = actions[CreateEntry], [StorageError("a hiccup")]

    def failing(effect: CreateEntry) -> Any:
        if failures:
            raise failures.pop()
        return create(effect)

    actions[CreateEntry] = failing
    assert closed(made, posted) is None
    assert made._runner().run(entries()) == 2


def test_a_close_whose_answer_was_lost_has_closed_the_job() -> None:
    posted: queue.SimpleQueue[Any] = queue.SimpleQueue()
    made = work(posted)
    made._journal = made._claim()
    assert closed(made, posted) is None
    made._journal.in_doubt = True
    assert closed(made, posted) is None
    assert made._runner().run(entries()) == 2, "it was not claimed again"


def test_no_sweep_waits_behind_one_that_is_under_way() -> None:
    """Without a broker one takes for ever, and each ten seconds would bring another."""
    made = work(queue.SimpleQueue())
    made._journal = made._claim()
    actions = made._runner()._actions
    begun, listing, answers = queue.SimpleQueue[int](), [0], queue.SimpleQueue[Any]()

    def hanging(_: ListTransactions) -> Any:
        listing[0] += 1
        begun.put(listing[0])
        return answers.get(timeout=10)

    actions[ListTransactions] = hanging
    for _ in range(5):
        made.sweep()
    assert begun.get(timeout=10) == 1
    answers.put({})
    made._sweeper.submit(lambda: begun.put(0))
    assert begun.get(timeout=10) == 0, "nothing has waited in between"
    made.sweep()
    assert begun.get(timeout=10) == 2, "the next one is made"
    answers.put({})


@pytest.mark.parametrize("final", [True, False])
def test_a_job_whose_last_checkpoint_is_published_asks_nothing_of_its_sources(
    final: bool,
) -> None:
    """Its topic may be gone by then; the job is finished all the same."""
    made = work(queue.SimpleQueue())
    journal = made._claim()
    made._runner().run(publish(journal, manifest(journal, 1, final=final), ()))

    def deleted(_: object) -> Any:
        raise RefusedError("there is no topic orders")

    drivers, plan = cast("Any", made._drivers), cast("Any", made._plan)
    drivers.kafka_admin, plan.kafka = deleted, {}
    if final:
        assert made._recover(lambda _: None).finished
    else:
        with pytest.raises(RefusedError, match="no topic"):
            made._recover(lambda _: None)


def test_a_restart_without_a_publication_begins_where_the_first_attempt_did() -> None:
    made = work(queue.SimpleQueue())
    source: KafkaSource[str] = KafkaSource("t", value=Utf8(), start="latest")
    node = SimpleNamespace(kind="source", id="in", declaration=source)
    made._plan = cast(
        "Any",
        SimpleNamespace(
            graph=[node],
            config=Config(),
            kafka={},
            facts=PlanFacts(parallelism=1, max_parallelism=128),
        ),
    )
    admin = Admin()
    made._drivers = cast("Any", SimpleNamespace(kafka_admin=lambda _: admin))
    ends = []
    for admin.end in (100, 170):
        ((split,),) = made._resolve(None).splits
        ends.append(split.offset)
    assert ends == [100, 100]


class Admin:
    """A topic of one partition, to which somebody writes."""

    end = 0

    def partitions(self, topic: str) -> int:
        return 1

    def earliest(self, origins: list[Origin]) -> dict[Origin, int]:
        return dict.fromkeys(origins, 0)

    def latest(self, origins: list[Origin]) -> dict[Origin, int]:
        return dict.fromkeys(origins, self.end)

    def close(self) -> None:
        pass


def entries() -> Procedure[int]:
    state = yield from read_journal(JobName("job"))
    return state.number
