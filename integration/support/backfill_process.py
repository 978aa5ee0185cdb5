"""A backfill's driver as a process that traps may kill: `python -m
integration.support.backfill_process`.

The argument is the job as JSON. The tasks run in this process too, so a kill at a point of a slot
also kills the driver.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from integration.faults.kill_points.kill_points import Plan, Traps
from integration.faults.kill_points.mains import JobMasterDrivers, SlotDrivers
from integration.support.backfills import BackfillJob
from tidegate.backfill.executor import InProcessExecutor
from tidegate.dataplane.engine import IO_THREADS
from tidegate.dataplane.waves.level_task import TaskHost
from tidegate.drivers.system import SystemDrivers


def main() -> int:
    """Run the waves, and print one line for each of them at the end."""
    given = json.loads(sys.argv[1])
    traps = Traps(Plan.from_environment())
    real = SystemDrivers()
    host = TaskHost(drivers=SlotDrivers(traps, real), io=real.threads.pool(IO_THREADS, name="io"))
    job = BackfillJob(given["reference"], Path(given["folder"]), given["settings"])
    waves = job.backfill(
        parallelism=given["parallelism"],
        wave_offsets=given["wave_offsets"],
        executor=InProcessExecutor(host),
        drivers=JobMasterDrivers(traps, real),
    )
    for wave in waves:
        print(json.dumps({"attempt": wave.attempt, "records_in": wave.records_in}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
