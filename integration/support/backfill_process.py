"""A backfill's driver as a process that traps may kill: `python -m
integration.support.backfill_process`.

The argument is the JSON of `DriverArguments`. The tasks run in this process too, so a kill at a
point of a slot also kills the driver.
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any, Final

import msgspec

from integration.faults.kill_points.kill_points import Plan, Trap, Traps
from integration.faults.kill_points.mains import JobMasterDrivers, SlotDrivers
from integration.support.backfills import BackfillJob
from integration.support.running import owned
from tidegate.backfill.executor import InProcessExecutor
from tidegate.dataplane.engine import IO_THREADS
from tidegate.dataplane.waves.level_task import TaskHost
from tidegate.drivers.system import SystemDrivers
from tidegate.protocol.submission import PartitionEnd

DRIVER_S_MAX: Final = 120.0


class DriverArguments(msgspec.Struct, frozen=True, kw_only=True):
    """The job, and how its backfill runs."""

    reference: str
    """The pipeline, as `module:Class`."""
    folder: str
    settings: dict[str, Any]
    parallelism: int = 2
    wave_offsets: int = 8_000
    ends: tuple[PartitionEnd, ...] = ()
    """The ends of the backfill. Without them, it reads all records that are there."""


def run_driver(arguments: DriverArguments, plan: Plan) -> int:
    """Run a driver, and return its exit code. Its log is `driver.log` in its folder."""
    given = msgspec.json.encode(arguments).decode()
    process = owned(
        [sys.executable, "-m", "integration.support.backfill_process", given],
        folder=Path(arguments.folder),
        log=driver_log(arguments),
        environment=plan.to_environment(),
    )
    return process.wait(timeout=DRIVER_S_MAX)


def killed_driver(arguments: DriverArguments, kill: Trap) -> None:
    """Run a driver that is killed at a trap."""
    plan = Plan.of(Path(arguments.folder) / "driver-traps", [kill])
    code = run_driver(arguments, plan)
    assert code == -signal.SIGKILL, f"exit code {code}: {driver_log(arguments).read_text()}"
    assert len(plan.snapped()) == 1


def driver_log(arguments: DriverArguments) -> Path:
    """Return the file with what drivers of this job have printed."""
    return Path(arguments.folder) / "driver.log"


def main() -> int:
    """Run the waves, and print one line for each of them at the end."""
    given = msgspec.json.decode(sys.argv[1], type=DriverArguments)
    traps = Traps(Plan.from_environment())
    real = SystemDrivers()
    host = TaskHost(drivers=SlotDrivers(traps, real), io=real.threads.pool(IO_THREADS, name="io"))
    job = BackfillJob(given.reference, Path(given.folder), given.settings)
    waves = job.backfill(
        parallelism=given.parallelism,
        wave_offsets=given.wave_offsets,
        ends=given.ends,
        executor=InProcessExecutor(host),
        drivers=JobMasterDrivers(traps, real),
    )
    for wave in waves:
        print(json.dumps({"attempt": wave.attempt, "records_in": wave.records_in}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
