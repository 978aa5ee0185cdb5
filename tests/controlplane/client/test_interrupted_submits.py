"""A submit that is interrupted at any of its storage requests, and the leader that follows.

Goal: a submission that was never accepted supersedes nothing. A submission of a fenced leader never
counts. No process reverts what a later leader has accepted.

Method: the real shells, machines and store over objects in memory. At every request the first
JobManager may hang, die, or leave the request to arrive late. The later JobManagers act at every
combination of these points. The last JobManager that reads the storage shows what counts in the
end.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tests.controlplane.jobmanager.dispatching import A
from tests.controlplane.jobmanager.test_job_store import Blobs
from tests.controlplane.jobmanager.test_leadership import CLUSTER, HERE, ByHand
from tidegate.controlplane.jobmanager.job_store import JobStore
from tidegate.ports.blobs import BlobStore, CreateResult
from tidegate.protocol.job_state import JobState
from tidegate.protocol.messages import Acknowledge
from tidegate.protocol.reports import JobReport
from tidegate.protocol.submission import StoredCode

CODE = b"files"
STORED = StoredCode(digest=hashlib.sha256(CODE).hexdigest(), size=len(CODE))
EARLIER = msgspec.structs.replace(HERE, id="earlier", code=STORED)
OLDS = msgspec.structs.replace(HERE, id="the old leader's", code=STORED)
NEWS = msgspec.structs.replace(HERE, id="the new leader's", code=STORED)
THEIRS = msgspec.structs.replace(HERE, id="another cluster's", cluster="there")
ENDED = JobReport(job=A, state=JobState.FINISHED)
REQUESTS_MAX = 30
"""More than a leader sends at its start."""


class KilledError(BaseException):
    """The process is gone."""


class Requests:
    """One process's way to the storage: `before` is called at each request, with its number."""

    def __init__(self, blobs: Blobs, before: Callable[[int, Callable[[], Any]], Any]) -> None:
        self._blobs, self._before = blobs, before
        self.sent = 0

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._blobs, name)

        def request(*arguments: object) -> Any:
            self.sent += 1
            return self._before(self.sent, lambda: method(*arguments))

        return request


def store(blobs: Blobs | Requests) -> BlobStore:
    return blobs  # type: ignore[return-value]  # files are not asked for


def ended_earlier() -> Blobs:
    """A storage with a job of the cluster that has ended."""
    blobs = Blobs()
    leader = ByHand(store(blobs))
    leader.submit(EARLIER, CODE)
    leader.store.put_result(ENDED)
    return blobs


def counting(blobs: Blobs, cluster: str = CLUSTER) -> list[str]:
    """The submissions of a cluster that count for its next leader, by the ids of the clients. The
    code of each is there.
    """
    leader = JobStore(store(blobs), cluster)
    leader.claim_epoch(f"reader {len(blobs.objects)}")
    found = [kept for kept, _ in leader.jobs()]
    for kept in found:
        assert kept.code is None or blobs.objects[kept.code.path] == CODE
    return [kept.id for kept in found]


def accepted(manager: ByHand) -> bool:
    return any(isinstance(reply, Acknowledge) for reply in manager.replies)


class Later:
    """The next JobManager. Its actions are separate steps, and the old one may hang between any
    two.
    """

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self.manager: ByHand | None = None
        self.found: list[str] | None = None

    def claims(self) -> None:
        self.manager = ByHand(store(self._blobs))

    def recovers(self) -> None:
        assert self.manager is not None
        self.manager.service.start()
        self.manager.turn()
        dispatcher = self.manager.service.dispatcher
        self.found = [dispatcher.submission(job).id for job in dispatcher.live()]

    def submits(self) -> None:
        """Ends what it runs, so that it may take another submit of the job."""
        assert self.manager is not None
        if self.found:
            self.manager.store.put_result(ENDED)
            self.manager = ByHand(store(self._blobs))
            self.manager.service.start()
            self.manager.turn()
        self.manager.submit(NEWS, CODE)


def stood_still(blobs: Blobs, steps: list[Callable[[], None]], at: tuple[int, ...]) -> ByHand:
    """An old leader that submits. It hangs before the requests of `at` while the steps run."""
    left = list(zip(at, steps, strict=True))

    def before(number: int, act: Callable[[], Any]) -> Any:
        while left and left[0][0] <= number:
            left.pop(0)[1]()
        return act()

    requests = Requests(blobs, lambda _, act: act())
    old = ByHand(store(requests))
    requests.sent, requests._before = 0, before
    old.submit(OLDS, CODE)
    while left:
        left.pop(0)[1]()
    old.goes_on(after_s=60.0)
    return old


def submit_length() -> int:
    blobs = ended_earlier()
    requests = Requests(blobs, lambda _, act: act())
    old = ByHand(store(requests))
    requests.sent = 0
    old.submit(OLDS, CODE)
    return requests.sent


LENGTH = submit_length()


def test_submit_of_a_hung_leader_counts_only_if_the_next_leader_found_it() -> None:
    """The old leader hangs at any request while the next one claims its epoch and recovers."""
    assert interrupted(submits=False) == {(OLDS.id,), (EARLIER.id,)}, "both were reached"


def test_hung_leader_does_not_revert_a_submit_that_the_next_leader_accepted() -> None:
    """The old leader hangs at any request, during any part of the next leader's steps."""
    assert interrupted(submits=True) == {(NEWS.id,)}


def interrupted(*, submits: bool) -> set[tuple[str, ...]]:
    """The submissions that count in the end, for all combinations of points."""
    outcomes = set()
    for at in itertools.combinations_with_replacement(range(1, LENGTH + 2), 2 + submits):
        blobs = ended_earlier()
        later = Later(blobs)
        steps = [later.claims, later.recovers, *([later.submits] if submits else [])]
        old = stood_still(blobs, steps, at)
        assert later.manager is not None
        news = accepted(later.manager)
        final = counting(blobs)
        assert news == submits, "the new leader leads"
        if news:
            assert final == [NEWS.id], at
        else:
            assert (final == [OLDS.id]) == (later.found == [OLDS.id]), at
            assert final in ([OLDS.id], [EARLIER.id]), at
        if accepted(old):
            assert later.found == [OLDS.id], at
        outcomes.add(tuple(final))
    return outcomes


@pytest.mark.parametrize("effect", [False, True], ids=["not carried out", "carried out"])
def test_kill_at_any_request_of_a_submit_leaves_the_old_or_the_new_submission(
    effect: bool,
) -> None:
    outcomes = set()
    for last in range(1, LENGTH + 1):
        blobs = ended_earlier()

        def dies(number: int, act: Callable[[], Any], last: int = last) -> Any:
            if number < last:
                return act()
            if effect:
                act()
            raise KilledError

        requests = Requests(blobs, lambda _, act: act())
        old = ByHand(store(requests))
        requests.sent, requests._before = 0, dies
        with pytest.raises(KilledError):
            old.submit(OLDS, CODE)
        found = counting(blobs)
        assert found in ([EARLIER.id], [OLDS.id])
        assert counting(blobs) == found, "what counts is final once a leader has read it"
        if accepted(old):
            assert found == [OLDS.id]
        outcomes.add((found == [OLDS.id], accepted(old)))
    assert (False, False) in outcomes
    assert ((True, False) in outcomes) == effect, "a kill after the decision, before the reply"


def test_late_request_of_a_dead_leader_does_not_change_what_the_next_leader_found() -> None:
    outcomes = set()
    for last, arrives in itertools.product(range(1, LENGTH + 1), range(1, REQUESTS_MAX)):
        blobs = ended_earlier()
        under_way: list[Callable[[], Any]] = []

        def dies(
            number: int,
            act: Callable[[], Any],
            last: int = last,
            under_way: list[Callable[[], Any]] = under_way,
        ) -> Any:
            if number < last:
                return act()
            under_way.append(act)
            raise KilledError

        requests = Requests(blobs, lambda _, act: act())
        old = ByHand(store(requests))
        requests.sent, requests._before = 0, dies
        with pytest.raises(KilledError):
            old.submit(OLDS, CODE)

        def late(
            number: int,
            act: Callable[[], Any],
            arrives: int = arrives,
            under_way: list[Callable[[], Any]] = under_way,
        ) -> Any:
            if number == arrives:
                under_way.pop()()
            return act()

        new = JobStore(store(Requests(blobs, late)), CLUSTER)
        new.claim_epoch("new")
        found = [kept.id for kept, _ in new.jobs()]
        if under_way:
            under_way.pop()()
        assert counting(blobs) == found, (last, arrives)
        outcomes.add(tuple(found))
    assert outcomes == {(EARLIER.id,), (OLDS.id,)}


def test_submit_that_is_not_accepted_leaves_the_job_with_the_other_cluster() -> None:
    """The other cluster runs the job, and would drop its JobMaster as soon as that is fenced."""
    for last in range(1, LENGTH + 1):
        blobs = Blobs()
        there = JobStore(store(blobs), "there")
        there.claim_epoch("there")
        there.put_submission(THEIRS)
        assert there.accept(A)

        def dies(number: int, act: Callable[[], Any], last: int = last) -> Any:
            if number == last:
                raise KilledError
            return act()

        requests = Requests(blobs, lambda _, act: act())
        here = ByHand(store(requests))
        requests.sent, requests._before = 0, dies
        with pytest.raises(KilledError):
            here.submit(OLDS, CODE)
        if accepted(here):
            assert there.has_moved(A)
        else:
            assert not there.has_moved(A)
            assert (counting(blobs), counting(blobs, "there")) == ([], [THEIRS.id])


def test_submit_gets_no_reply_while_the_outcome_of_its_decision_is_unknown() -> None:
    """The client waits, and asks again: the submission may count already."""
    blobs = Blobs()
    manager = ByHand(store(blobs))
    create = blobs.create
    answers = {"decision.json": False}

    def silent(path: str, data: bytes) -> CreateResult:
        if not answers.get(path.rpartition("/")[2], True):
            return CreateResult.UNKNOWN
        return create(path, data)

    blobs.create = silent  # type: ignore[method-assign]
    manager.submit(OLDS, CODE)
    for _ in range(3):
        manager.goes_on(after_s=60.0)
    assert (manager.replies, manager.spawned, manager.loop.stopped) == ([], [], False)
    answers.clear()
    manager.goes_on(after_s=60.0)
    assert (accepted(manager), manager.spawned) == (True, ["jobmaster"])


def test_submission_of_a_local_cluster_counts_once_accepted() -> None:
    blobs = Blobs()
    local = ByHand(store(blobs), session_cluster=False)
    local.submit(OLDS, CODE)
    assert accepted(local)
    assert counting(blobs) == [OLDS.id]
