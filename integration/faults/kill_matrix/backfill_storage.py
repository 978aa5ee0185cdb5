"""Makes the checkpoint storage fail while a backfill runs, in its tasks and in its driver.

There is one driver. Its waves are held at a point until the test sets a rule (`faulty_storage`),
and then continue. The wave must be published in spite of the rule, after a retry if necessary. The
rule must also have affected a call. Then the test sets the next rule.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from integration.faults.kill_matrix.backfill_cells import PIPELINES, SECTION
from integration.faults.kill_matrix.backfill_strikes import WAVE_BEGINS
from integration.faults.kill_matrix.backfill_subject import (
    WAVE,
    BackfillSubject,
    ends_well,
    short,
    tail,
    until_snapped,
)
from integration.faults.kill_matrix.faulty_storage import Does, Rule, Rules
from integration.faults.kill_matrix.scenarios import EXACT, Result, Stage
from integration.faults.kill_matrix.storage_faults import JOURNAL, MANIFEST, STATE
from integration.faults.kill_matrix.subject import WrongError
from integration.faults.kill_points.kill_points import Trap

COLLECTED: Final = Trap("driver.collected", holds=True)
TASK, DRIVER = "slot", "jobmaster"
"""The roles of the drivers that a task of a wave and the driver of a backfill have."""


@dataclass(frozen=True, slots=True)
class Failing:
    """A rule, and the point at which the wave waits when the rule is set."""

    name: str
    words: str
    rule: Rule
    at: Trap = WAVE_BEGINS
    forgets: bool = False
    """Whether the test deletes the state on this host, so that it comes from the storage."""


def _create(does: Does, times: int) -> Rule:
    """Return a rule for the journal entries that the driver creates: a claim, or a publication."""
    return Rule(does=does, call="create", path=JOURNAL, role=DRIVER, times=times)


FAILINGS: Final = (
    Failing(
        "failing-upload",
        "two uploads of state fail",
        Rule(does="fail", call="put_file", role=TASK, times=2),
    ),
    Failing(
        "slow-upload",
        "uploads of state take 2 s",
        Rule(does="slow", call="put_file", role=TASK, seconds=2.0),
    ),
    Failing(
        "failing-restore",
        "the state on the host is lost, and two downloads of state fail",
        Rule(does="fail", call="get_file", path=STATE, role=TASK, times=2),
        forgets=True,
    ),
    Failing("failing-claim", "the claim fails twice", _create("fail", 2)),
    Failing(
        "unheard-claim",
        "the claim is written, but the storage does not confirm it",
        _create("unheard", 1),
    ),
    Failing(
        "failing-journal",
        "two reads of the journal fail",
        Rule(does="fail", call="get", path=JOURNAL, role=DRIVER, times=2),
    ),
    Failing(
        "failing-manifest",
        "two writes of the manifest fail",
        Rule(does="fail", call="put", path=MANIFEST, role=DRIVER, times=2),
        COLLECTED,
    ),
    Failing(
        "failing-publication",
        "two creates of the publication fail",
        _create("fail", 2),
        COLLECTED,
    ),
    Failing(
        "silent-publication",
        "the publication is not written, and the storage does not report this",
        _create("silent", 1),
        COLLECTED,
    ),
    Failing(
        "unheard-publication",
        "the publication is written, but the storage does not confirm it",
        _create("unheard", 1),
        COLLECTED,
    ),
)


@dataclass(slots=True)
class TriedRule:
    """A rule that was set."""

    failing: Failing
    verdict: str = EXACT


@dataclass(frozen=True, slots=True)
class BackfillStorageFaults:
    """One backfill on one version of Kafka."""

    version: str
    pipeline: str

    @property
    def cells(self) -> Sequence[str]:
        """Names of the cells, one for each rule."""
        return [self._cell(each) for each in FAILINGS]

    def _cell(self, failing: Failing) -> str:
        pipeline = self.pipeline.replace(" ", "-")
        return f"{SECTION}/{self.version}/{pipeline}/storage/{failing.name}"

    def run(self, cells: Sequence[str], stage: Stage) -> Iterator[Result]:
        """Set these rules one after the other (see `scenarios.Scenario`)."""
        left = [each for each in FAILINGS if self._cell(each) in cells]
        while left:
            done = self._job(left, stage)
            for met in done:
                yield self._result(met, stage)
            left = left[len(done) :]

    def _job(self, failings: Sequence[Failing], stage: Stage) -> list[TriedRule]:
        """Run one job, and return the rules that were set, up to and including the first that
        failed.
        """
        folder = stage.new_folder(f"backfill {self.version} storage")
        bootstrap = stage.broker(self.version).bootstrap
        done: list[TriedRule] = []
        with BackfillSubject.made(bootstrap, folder, PIPELINES[self.pipeline]) as subject:
            try:
                _fail_one_after_the_other(subject, failings, done)
                subject.judge_the_whole()
            except (AssertionError, WrongError, TimeoutError, subprocess.TimeoutExpired) as error:
                (folder / "story.txt").write_text(str(error), encoding="utf-8")
                done[-1].verdict = short(error)
        return done

    def _result(self, met: TriedRule, stage: Stage) -> Result:
        return Result(
            cell=self._cell(met.failing),
            name=met.failing.words,
            version=self.version,
            pipeline=self.pipeline,
            signal=met.failing.rule.does,
            seed=stage.seed,
            kills=max(met.failing.rule.times, 1),
            recovery_s=(),
            verdict=met.verdict,
            date=stage.date,
        )


def _fail_one_after_the_other(
    subject: BackfillSubject, failings: Sequence[Failing], done: list[TriedRule]
) -> None:
    rules = Rules(subject.job.folder / "rules")
    subject.write((2 * len(failings) + 2) * WAVE)
    traps = [trap for each in failings for trap in (each.at, WAVE_BEGINS)]
    with subject.driver(*traps, environment=rules.environment) as driver:
        for number, failing in enumerate(failings):
            done.append(TriedRule(failing))
            until_snapped(driver, 2 * number)
            if failing.forgets:
                shutil.rmtree(subject.job.folder / subject.options.settings["state.local_dir"])
            rules.set(failing.rule)
            driver.plan.release(2 * number)
            until_snapped(driver, 2 * number + 1)
            if not rules.met():
                raise WrongError(
                    f"the rule has affected no call, so the test proves nothing: {tail(driver)}"
                )
            rules.set()
            subject.judge_so_far()
            driver.plan.release(2 * number + 1)
        ends_well(driver)
