"""Makes the disks and stores of a job slow, failing or full, or hides the outcome of a write.

The job writes to the checkpoint storage, the local state of slots, and the logs. Rules
(`faulty_storage`) define the faults of the checkpoint storage. Full disks are real. They are small
file systems that are mounted for the story, and filled to the last byte at the call that a rule
names. If the user may not mount (is not root), the stories on full disks are skipped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from integration.faults.kill_matrix.fault_sequences import (
    PIPELINES,
    Attack,
    kill_one,
    lasting,
    told,
)
from integration.faults.kill_matrix.faulty_storage import Rule, Rules, fill, make_room
from integration.faults.kill_matrix.live import LiveJob
from integration.faults.kill_matrix.scenarios import Result, Stage

OPTIONS: Final = ("--task-managers", "2", "--slots", "1")
JOURNAL: Final = "/journal/"
MANIFEST: Final = "/manifests/"
STATE: Final = "/files/"
LOCAL: Final = "^local state$"
LOCAL_STATE: Final = ".tidegate/state"

RULES: Final[dict[str, tuple[str, float, tuple[Rule, ...]]]] = {
    "slow-upload": (
        "every upload of state takes 2 s",
        6.0,
        (Rule(does="slow", call="put_file", role="slot", seconds=2.0),),
    ),
    "slow-publication": (
        "every manifest and journal entry takes 2 s",
        6.0,
        (
            Rule(does="slow", call="put", role="jobmaster", seconds=2.0),
            Rule(does="slow", call="create", role="jobmaster", seconds=2.0),
        ),
    ),
    "failing-upload": (
        "uploads of state fail for 4 s",
        4.0,
        (Rule(does="fail", call="put_file", role="slot"),),
    ),
    "failing-manifest": (
        "manifests cannot be written for 4 s",
        4.0,
        (Rule(does="fail", call="put", path=MANIFEST, role="jobmaster"),),
    ),
    "failing-publication": (
        "journal entries cannot be created for 4 s",
        4.0,
        (Rule(does="fail", call="create", path=JOURNAL, role="jobmaster"),),
    ),
    "failing-deletion": (
        "old files cannot be deleted for 4 s",
        4.0,
        (Rule(does="fail", call="delete", role="jobmaster"),),
    ),
    "slow-local-state": (
        "every read, write and freeze of local state takes 0.3 s",
        6.0,
        (Rule(does="slow", path=LOCAL, role="slot", seconds=0.3),),
    ),
    "silent": (
        "a journal entry is not written, and the storage does not report this, 3 times",
        4.0,
        (Rule(does="silent", call="create", path=JOURNAL, role="jobmaster", times=3),),
    ),
    "unheard": (
        "a journal entry is written, but the storage does not confirm it, 3 times",
        4.0,
        (Rule(does="unheard", call="create", path=JOURNAL, role="jobmaster", times=3),),
    ),
}
"""Faults of the checkpoint storage: a description, the duration in seconds, and the rules."""

IN_RECOVERY: Final[dict[str, tuple[str, str, tuple[Rule, ...]]]] = {
    "failing-claim": (
        "a JobMaster is killed, and the claim of the next one fails 3 times",
        "jobmaster",
        (Rule(does="fail", call="create", path=JOURNAL, role="jobmaster", times=3),),
    ),
    "unheard-claim": (
        "a JobMaster is killed, and the storage does not confirm the claim of the next one",
        "jobmaster",
        (Rule(does="unheard", call="create", path=JOURNAL, role="jobmaster", times=2),),
    ),
    "failing-journal": (
        "a JobMaster is killed, and reads of the journal fail 3 times",
        "jobmaster",
        (Rule(does="fail", call="get", path=JOURNAL, role="jobmaster", times=3),),
    ),
    "failing-restore": (
        "a slot is killed, its local state is lost, and downloads of state fail 3 times",
        "slot",
        (Rule(does="fail", call="get_file", path=STATE, role="slot", times=3),),
    ),
    "slow-restore": (
        "a slot is killed, its local state is lost, and every download of state takes 0.5 s",
        "slot",
        (Rule(does="slow", call="get_file", path=STATE, role="slot", seconds=0.5, times=12),),
    ),
    "failing-jobmanager": (
        "a JobManager is killed, and a storage call of the next one fails",
        "jobmanager",
        (Rule(does="fail", role="jobmanager", times=1),),
    ),
}
"""Faults that a recovery meets: a description, the role that is killed, and the rules."""

DISKS: Final = {"checkpoint.dir": "48m", "state.local_dir": "64m", "logs.dir": "2m"}
FULL: Final = {
    "full-at-publication": "the disk of checkpoints is full when a journal entry is created",
    "full-at-manifest": "the disk of checkpoints is full when a manifest is written",
    "full-at-upload": "the disk of checkpoints is full when state is uploaded",
    "full-at-restore": (
        "a slot is killed, its local state is lost, and the disk is full when state is downloaded"
    ),
    "full-local-state": "the disk of local state is full while the job runs",
    "full-logs": "the disk of logs is full, and a slot is killed",
}
FULL_S: Final = 4.0
AFFECTED_S_MAX: Final = 30.0


@dataclass(frozen=True, slots=True)
class StorageFaults:
    """One job, on a checkpoint storage that fails in every way."""

    version: str
    pipeline: str

    @property
    def prefix(self) -> str:
        return f"storage/{self.version}/{self.pipeline.replace(' ', '-')}"

    @property
    def cells(self) -> Sequence[str]:
        return [f"{self.prefix}/{name}" for name in self._names]

    @property
    def _names(self) -> list[str]:
        """Names of the faults. A stateless job has no state to upload, download or keep locally."""
        stateless = self.pipeline == "stateless"
        return [
            name
            for name in (*RULES, *IN_RECOVERY)
            if not (stateless and any(word in name for word in ("upload", "restore", "local")))
        ]

    def run(self, cells: Sequence[str], stage: Stage) -> Iterator[Result]:
        """Make one fault after the other."""
        folder = stage.new_folder(f"storing {self.pipeline}")
        rules = Rules(folder / "rules")
        local = folder / LOCAL_STATE
        with LiveJob(
            stage.broker(self.version).bootstrap,
            folder,
            PIPELINES[self.pipeline],
            seed=stage.seed,
            environment=rules.environment,
            options=OPTIONS,
        ) as live:
            attacks = [
                attack for attack in self._attacks(rules, live, local) if attack.cell in cells
            ]
            yield from told(
                live, attacks, version=self.version, pipeline=self.pipeline, stage=stage
            )

    def _attacks(self, rules: Rules, live: LiveJob, local: Path) -> Iterator[Attack]:
        for name, (words, seconds, befall) in RULES.items():
            begin, end = partial(rules.set, *befall), partial(_end, rules)
            yield Attack(
                cell=f"{self.prefix}/{name}",
                name=words,
                signal=name.partition("-")[0],
                make=partial(lasting, begin, end, seconds),
            )
        for name, (words, role, befall) in IN_RECOVERY.items():
            yield Attack(
                cell=f"{self.prefix}/{name}",
                name=words,
                signal=f"SIGKILL, {name.partition('-')[0]}",
                make=partial(_kill_under, live, role, local, rules, befall),
                faults=2,
                after=partial(_end, rules),
            )


def _end(rules: Rules) -> None:
    """Remove the rule after it has affected a call. Raise AssertionError if none comes in time."""
    end_s = time.monotonic() + AFFECTED_S_MAX
    while not rules.met():
        if time.monotonic() > end_s:
            raise AssertionError("The rule has affected no call, so the test proves nothing.")
        time.sleep(0.05)
    rules.set()


def _kill_under(
    live: LiveJob, role: str, local: Path, rules: Rules, befall: Sequence[Rule]
) -> float:
    rules.set(*befall)
    return kill_with_state(live, local) if role == "slot" else kill_one(live, role)


def kill_with_state(live: LiveJob, local: Path) -> float:
    """Kill a slot, delete the job's local state, and return the time of the kill."""
    killed_s = kill_one(live, "slot")
    forget(local)
    return killed_s


def forget(local: Path) -> None:
    """Delete the local state of killed slots before other slots can restore from it. The state must
    then come from the checkpoint storage.
    """
    for job in local.iterdir():
        shutil.rmtree(job, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class FullDisks:
    """One job whose checkpoints, local state and logs are on separate small disks."""

    version: str
    pipeline: str

    @property
    def prefix(self) -> str:
        return f"storage/{self.version}/{self.pipeline.replace(' ', '-')}"

    @property
    def cells(self) -> Sequence[str]:
        return [f"{self.prefix}/{name}" for name in FULL]

    def run(self, cells: Sequence[str], stage: Stage) -> Iterator[Result]:
        """Fill one disk after the other."""
        folder = stage.new_folder(f"disks {self.pipeline}")
        rules = Rules(folder / "rules")
        with ExitStack() as stack:
            disks = {
                setting: stack.enter_context(small_disk(folder / setting, size))
                for setting, size in DISKS.items()
            }
            live = stack.enter_context(
                LiveJob(
                    stage.broker(self.version).bootstrap,
                    folder,
                    PIPELINES[self.pipeline],
                    seed=stage.seed,
                    environment=rules.environment,
                    options=OPTIONS,
                    config={setting: setting for setting in DISKS},
                )
            )
            attacks = [each for each in self._attacks(rules, live, disks) if each.cell in cells]
            yield from told(
                live, attacks, version=self.version, pipeline=self.pipeline, stage=stage
            )

    def _attacks(self, rules: Rules, live: LiveJob, disks: dict[str, Path]) -> Iterator[Attack]:
        stored, state, logs = (disks[setting] for setting in DISKS)
        says = partial(_says, live, "the disk is full")

        def full(call: str, path: str, role: str, disk: Path) -> Rule:
            return Rule(does="full", call=call, path=path, role=role, disk=str(disk))

        def while_full(rule: Rule) -> Callable[[], float]:
            def end() -> None:
                _end(rules)
                make_room(Path(rule.disk))

            return partial(lasting, partial(rules.set, rule), end, FULL_S)

        def restore() -> float:
            rules.set(full("get_file", STATE, "slot", state))
            return lasting(partial(kill_with_state, live, state), room_again, FULL_S)

        def room_again() -> None:
            _end(rules)
            make_room(state)

        def fill_logs() -> None:
            fill(logs)
            kill_one(live, "slot")

        made: dict[str, tuple[Callable[[], float], Callable[[], str]]] = {
            "full-at-publication": (while_full(full("create", JOURNAL, "jobmaster", stored)), says),
            "full-at-manifest": (while_full(full("put", MANIFEST, "jobmaster", stored)), says),
            "full-at-upload": (while_full(full("put_file", STATE, "slot", stored)), says),
            "full-at-restore": (restore, says),
            "full-local-state": (
                partial(lasting, partial(fill, state), partial(make_room, state), FULL_S),
                says,
            ),
            "full-logs": (partial(lasting, fill_logs, partial(make_room, logs), FULL_S), str),
        }
        for name, words in FULL.items():
            make, check = made[name]
            yield Attack(
                cell=f"{self.prefix}/{name}",
                name=words,
                signal="full disk",
                make=make,
                check=check,
            )


def _says(live: LiveJob, sentence: str) -> str:
    """Return a problem unless the job has reported the disk to its user in a sentence, without a
    traceback.
    """
    said = live.told()
    if "Traceback" in said:
        return "the job shows a traceback"
    return "" if sentence in said else f"the job does not report that {sentence}"


@contextmanager
def small_disk(path: Path, size: str) -> Iterator[Path]:
    """Mount a file system of this size, and unmount it at the end."""
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def may_mount() -> bool:
    """Return whether this process may mount file systems."""
    if os.geteuid() != 0:
        return False
    tried = subprocess.run(
        ["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"],
        check=False,
        capture_output=True,
    )
    return tried.returncode == 0


def scenarios() -> Iterator[StorageFaults | FullDisks]:
    """Yield all scenarios of this module."""
    yield StorageFaults("4.3.0", "keyed")
    yield StorageFaults("4.3.0", "two sinks")
    yield StorageFaults("3.9.1", "stateless")
    if may_mount():
        yield FullDisks("4.3.0", "keyed")
        yield FullDisks("3.9.1", "two sinks")
