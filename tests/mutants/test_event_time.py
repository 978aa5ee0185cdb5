"""Bugs in event time; and who finds them."""

from __future__ import annotations

import pytest

from tests.checkpoint import test_restore as restore_tests
from tests.dataplane import test_task_time as task_tests
from tests.dataplane.sources import test_watermarks as source_tests
from tests.dataplane.time import test_valve as valve_tests
from tests.mutants.finders import once
from tests.mutants.planting import Edit, Mutant, assert_found, mutant_params
from tidegate.checkpoint.restore import _resolve_splits
from tidegate.dataplane.sources.watermarks import SourceWatermarks, _restored
from tidegate.dataplane.task import InputTask, SourceTask
from tidegate.dataplane.time.valve import WatermarkValve

OVERTAKES = (
    Edit(
        SourceTask._read,
        "    self._pending.extend(batches)\n",
        "    for batch in batches:\n"
        "        self.watermarks.observe(batch)\n"
        "    if batches:\n"
        "        self._emit_watermark(self.watermarks)\n"
        "    self._pending.extend(batches)\n",
    ),
)
LEFT_IN_SENDER = (Edit(SourceTask._inject, "        self._emit_watermark(self.watermarks)\n", ""),)
FLOOR_LOST = (
    Edit(
        _resolve_splits,
        "splits.append(structs.replace(split, watermark_ms=old.watermark_ms, idle=old.idle))",
        "splits.append(split)",
    ),
)
IDLE_LOST = (
    Edit(
        SourceWatermarks.__init__,
        "self._was_idle = [split.idle for split in splits]",
        "self._was_idle = [False for split in splits]",
    ),
)
IDLE_AT_ONCE = (
    Edit(
        _restored,
        "Watermark(MIN_MS if split.watermark_ms is None else split.watermark_ms)",
        "Watermark(\n"
        "        MIN_MS if split.watermark_ms is None else split.watermark_ms, idle=split.idle\n"
        "    )",
    ),
)
HELD_WHEN_IDLE = (
    Edit(
        WatermarkValve._combine,
        "max((each.watermark_ms for each in self._inputs), default=MIN_MS)",
        "before.timestamp_ms",
    ),
)
RETURNED_COUNTS = (
    Edit(
        WatermarkValve.offer,
        "each.aligned or each.watermark_ms >= self.combined.timestamp_ms",
        "True",
    ),
)
BACKPRESSURE_COUNTS = (
    Edit(
        SourceWatermarks.polled,
        "min(began_s - self._polled_s, BETWEEN_S_MAX)",
        "began_s - self._polled_s",
    ),
)
EARLY_UNDER_PRESSURE = (Edit(InputTask.step, "if writable and not", "if not"),)

MUTANTS = [
    Mutant(
        "a watermark overtakes the records that it follows from",
        OVERTAKES,
        once(
            task_tests.test_watermark_does_not_overtake_a_record_that_was_read_and_not_emitted,
            task_tests.TimedWorld,
        ),
        1,
        1,
    ),
    Mutant(
        "the watermark before a barrier stays in the sender",
        LEFT_IN_SENDER,
        once(
            task_tests.test_source_emits_its_watermark_directly_before_each_barrier,
            task_tests.TimedWorld,
        ),
        1,
        1,
    ),
    Mutant(
        "the watermark of a partition is not restored",
        FLOOR_LOST,
        once(restore_tests.test_restored_splits_keep_their_watermark_and_idleness),
        1,
        1,
    ),
    Mutant(
        "the idleness of a partition is not restored",
        IDLE_LOST,
        once(source_tests.test_splits_carry_watermarks_and_idleness_over_a_restore),
        1,
        1,
    ),
    Mutant(
        "a partition that was idle is idle after a restore although it has new records",
        IDLE_AT_ONCE,
        once(
            source_tests.test_partition_that_was_idle_and_has_new_records_holds_back_after_a_restore
        ),
        1,
        1,
    ),
    Mutant(
        "inputs that are all idle keep the least watermark",
        HELD_WHEN_IDLE,
        once(valve_tests.test_combined_watermark_is_the_highest_if_all_inputs_are_idle),
        1,
        1,
    ),
    Mutant(
        "an input that returns from idleness behind counts at once",
        RETURNED_COUNTS,
        once(valve_tests.test_input_that_returns_behind_stays_out_until_it_has_caught_up),
        1,
        1,
    ),
    Mutant(
        "a slow step makes partitions idle",
        BACKPRESSURE_COUNTS,
        once(source_tests.test_time_in_which_the_task_did_not_ask_does_not_count),
        1,
        1,
    ),
    Mutant(
        "a watermark fires into full outputs",
        EARLY_UNDER_PRESSURE,
        once(
            task_tests.test_watermark_waits_while_outputs_are_full_and_its_barrier_passes,
            task_tests.TimedWorld,
        ),
        1,
        1,
    ),
]


@pytest.mark.parametrize("mutant", mutant_params(MUTANTS))
def test_the_mutant_is_found(mutant: Mutant) -> None:
    assert_found(mutant)
