"""Bugs in event time; and who finds them."""

from __future__ import annotations

import pytest

from tests.checkpoint import test_restore as restore_tests
from tests.dataplane import test_task_time as task_tests
from tests.dataplane import test_with_timestamps as step_tests
from tests.dataplane.sources import test_watermarks as source_tests
from tests.dataplane.time import test_valve as valve_tests
from tests.mutants.finders import event_time, event_time_in, once
from tests.mutants.planting import Edit, Mutant, assert_found, mutant_params
from tests.simulator.plan import Plan
from tests.testing import test_with_timestamps as stamped_tests
from tests.testing.test_barriers_in_flight import judge as in_flight
from tidegate.checkpoint.restore import _combined_ms, _resolve_splits
from tidegate.dataplane import operator_registry as registry
from tidegate.dataplane.input_task import InputTask
from tidegate.dataplane.operators.keyed import KeyedOperator
from tidegate.dataplane.operators.timers import TimedKeyedOperator
from tidegate.dataplane.operators.with_timestamps import TimestampsOperator
from tidegate.dataplane.source_task import SourceTask
from tidegate.dataplane.sources.watermarks import SourceWatermarks, _restored
from tidegate.dataplane.state.backend import KeyedStateBackend
from tidegate.dataplane.state.state_accessors import TimerAccessor
from tidegate.dataplane.state.step import restored_watermark
from tidegate.dataplane.time.valve import WatermarkValve

RUNS = 40
"""Runs of the simulator."""
STAMPS = 20
"""Runs of the simulator with `with_timestamps`."""


def rescales(plan: Plan) -> bool:
    """Whether a later job run has another parallelism."""
    return len({job_run.parallelism for job_run in plan.job_runs}) > 1


def becomes_idle(plan: Plan) -> bool:
    """Whether several partitions are idle at the end, and timers wait for that."""
    event_time = plan.event_time
    return (
        event_time is not None
        and event_time.idle_after_ms is not None
        and len(event_time.partitions) > 1
        and plan.job_runs[-1].ends == "finished"
    )


def has_timers(plan: Plan) -> bool:
    """Whether the pipeline of a plan has timers, and no windows."""
    return plan.event_time is not None and plan.event_time.windows is None


def has_stamps(plan: Plan) -> bool:
    """Whether event times come from `with_timestamps`."""
    return plan.event_time is not None and plan.event_time.stamped


TIMERS = event_time_in("with timers", has_timers)
IDLE = event_time_in("whose partitions become idle", becomes_idle)
STAMPED = event_time_in("of with_timestamps", has_stamps)
RESCALED = event_time_in("whose parallelism changes", rescales)

OVERTAKES = (
    Edit(
        SourceTask._read,
        "    self._pending.extend(batches)\n",
        "    for batch in batches if self.watermarks else ():\n"
        "        self.watermarks.observe(batch)\n"
        "    if batches:\n"
        "        self._emit_watermark()\n"
        "    self._pending.extend(batches)\n",
    ),
)
LEFT_IN_SENDER = (Edit(SourceTask._inject, "    self._emit_watermark()\n", ""),)
FLOOR_LOST = (
    Edit(
        _resolve_splits,
        "splits.append(structs.replace(split, watermark_ms=old.watermark_ms, idle=idle))",
        "splits.append(split)",
    ),
)
IDLE_LOST = (
    Edit(
        SourceWatermarks.__init__,
        "self._was_idle = [split.idle and idles for split in splits]",
        "self._was_idle = [False for split in splits]",
    ),
)
IDLE_AT_ONCE = (
    Edit(
        _restored,
        "idle=idles and split.idle and is_read",
        "idle=split.idle",
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
END_OVERTAKES = (Edit(WatermarkValve._combine, "if found == MAX_MS and any(", "if False and any("),)
GROUP_OVERTAKES = (
    Edit(WatermarkValve._combine, "if each.idle and each.group in active and", "if False and"),
)
STEP_FLOOR_LOST = (
    Edit(
        restored_watermark,
        "return (max if aligned else min)(found, default=MIN_MS)",
        "return MIN_MS",
    ),
)
MAX_STORED = (Edit(KeyedOperator._note, "if watermark.timestamp_ms < MAX_MS:", "if True:"),)
TIMERS_LOST = (
    Edit(
        KeyedStateBackend._scan,
        "self._key_prefixes.values()",
        "list(self._key_prefixes.values())[:-1]",
    ),
)
FIRED_AGAIN = (Edit(TimerAccessor.save, "deletes.append(cell.store_key)", "pass"),)
FORWARDED_FIRST = (
    Edit(
        TimedKeyedOperator.advance, "    self._held = watermark\n", "    self.forward(watermark)\n"
    ),
)
WRONG_ORDER = (
    Edit(
        TimedKeyedOperator._fire_key,
        "timer = min(timers, key=lambda each: cells[each.position].next_ms())",
        "due = [each for each in timers if cells[each.position].next_ms() <= until_ms]\n"
        "            timer = (due or timers)[0]",
    ),
)
PIECE_LOST = (Edit(TimedKeyedOperator._fire_piece, "self.piece)", "1 << 62)[: self.piece]"),)
PAST_TIMER_WAITS = (
    Edit(
        TimedKeyedOperator._loop_with_timers,
        "if index.next_ms <= time.watermark_ms:",
        "if index.next_ms < 0 < time.watermark_ms:",
    ),
)
EARLY_UNDER_PRESSURE = (Edit(InputTask.step, "if writable and not", "if not"),)

LATER_COUNTS = (Edit(_combined_ms, "min(active) if active", "max(active) if active"),)
IDLE_FOR_EVER = (
    Edit(TimestampsOperator._wake_up, "    self._input_idle = self._quiet = False\n", ""),
)
MARK_NOT_SENT = (
    Edit(
        InputTask._carry_out,
        "                if not self._postponed:\n"
        "                    self.chain.emit_watermarks()\n",
        "",
    ),
)
PAUSE_COUNTS = (
    Edit(
        TimestampsOperator.advance_processing_time,
        "min(now_ms - self._looked_ms, 2 * self._look_ms)",
        "now_ms - self._looked_ms",
    ),
)

STAMP_LOST = (
    Edit(registry._with_timestamps, "restored_ms=chain.restored_watermark_ms(node),", ""),
)
END_IN_STAMP = (
    Edit(
        TimestampsOperator.snapshot,
        "found_ms = self._generated.watermark_ms",
        "found_ms = self._emitted.timestamp_ms",
    ),
)
REJECTED_TWICE = (
    Edit(
        TimestampsOperator.process,
        "        batch, times_ms = self._reject_untimed(batch)\n",
        "        self._reject_untimed(batch)\n"
        "        batch, times_ms = self._reject_untimed(batch)\n",
    ),
)
UNTIMED_MOVES = (
    Edit(
        TimestampsOperator._reject_untimed,
        "    return select(batch, good), times_ms\n",
        "    return select(batch, good), [max(times_ms, default=0)] * len(good)\n",
    ),
)
MARK_AHEAD = (
    Edit(
        TimestampsOperator.process,
        "        self._emit(with_times(batch, times_ms))\n",
        "        self.emit_watermark()\n        self._emit(with_times(batch, times_ms))\n",
    ),
)

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
    Mutant(
        "the end of the input overtakes the records of an idle input",
        END_OVERTAKES,
        once(
            valve_tests.test_end_of_time_is_combined_when_every_input_has_it_also_idle_ones,
        ),
        1,
        1,
    ),
    Mutant(
        "a watermark overtakes results of an idle subtask",
        GROUP_OVERTAKES,
        once(valve_tests.test_idle_input_of_an_active_group_counts_until_it_has_the_same_watermark),
        1,
        1,
    ),
    Mutant(
        "a step with its own time continues from the highest of its subtasks",
        LATER_COUNTS,
        once(
            stamped_tests.test_subtask_that_is_ahead_makes_no_record_of_another_late_after_a_restore
        ),
        1,
        1,
    ),
    Mutant(
        "a subtask of a step with its own time stays idle with its next record",
        IDLE_FOR_EVER,
        once(
            step_tests.test_input_that_is_idle_makes_the_step_idle_until_its_next_record,
        ),
        1,
        1,
    ),
    Mutant(
        "the watermark of a step with its own time stays in the sender at a barrier",
        MARK_NOT_SENT,
        once(
            step_tests.test_tasks_let_steps_emit_before_each_barrier_and_before_the_end,
            step_tests.World,
        ),
        1,
        1,
    ),
    Mutant(
        "full outputs make a subtask of a step with its own time idle",
        PAUSE_COUNTS,
        once(step_tests.test_long_time_between_two_looks_counts_as_two_looks),
        1,
        1,
    ),
    Mutant(
        "a watermark overtakes the records that it follows from", OVERTAKES, event_time, RUNS, 20
    ),
    Mutant(
        "the watermark before a barrier stays in the sender", LEFT_IN_SENDER, event_time, RUNS, 0
    ),
    Mutant("the watermark of a partition is not restored", FLOOR_LOST, event_time, RUNS, 3),
    Mutant("the watermark of a step is not restored", STEP_FLOOR_LOST, event_time, RUNS, 2),
    Mutant("the idleness of a partition is not restored", IDLE_LOST, event_time, RUNS, 1),
    Mutant("inputs that are all idle keep the least watermark", HELD_WHEN_IDLE, IDLE, 20, 1),
    Mutant("the end of time is stored as a watermark", MAX_STORED, event_time, RUNS, 5),
    Mutant("a restore forgets the timers of a key group", TIMERS_LOST, RESCALED, RUNS, 3),
    Mutant("a timer that has fired is stored", FIRED_AGAIN, TIMERS, RUNS, 5),
    Mutant("a restore forgets the timers of a key group", TIMERS_LOST, in_flight, 6, 2),
    Mutant("a timer that has fired is stored", FIRED_AGAIN, in_flight, 6, 2),
    Mutant("only the first piece of a burst fires", PIECE_LOST, in_flight, 6, 2),
    Mutant("a watermark is forwarded before what it makes due", FORWARDED_FIRST, TIMERS, RUNS, 3),
    Mutant("timers fire in the order of declaration", WRONG_ORDER, TIMERS, RUNS, 3),
    Mutant("only the first piece of a burst fires", PIECE_LOST, TIMERS, RUNS, 2),
    Mutant(
        "a watermark overtakes the records that it follows from", MARK_AHEAD, STAMPED, STAMPS, 8
    ),
    Mutant("the watermark of with_timestamps is not restored", STAMP_LOST, STAMPED, STAMPS, 2),
    Mutant(
        "a step with its own time continues from the highest of its subtasks",
        LATER_COUNTS,
        STAMPED,
        STAMPS,
        1,
    ),
    Mutant("with_timestamps stores what it has sent", END_IN_STAMP, STAMPED, STAMPS, 2),
    Mutant("a record is rejected twice", REJECTED_TWICE, STAMPED, STAMPS, 5),
    Mutant("the others of a batch get a wrong time", UNTIMED_MOVES, STAMPED, STAMPS, 5),
    Mutant("a timer that is set to the past waits", PAST_TIMER_WAITS, TIMERS, RUNS, 2),
]


@pytest.mark.parametrize("mutant", mutant_params(MUTANTS))
def test_the_mutant_is_found(mutant: Mutant) -> None:
    assert_found(mutant)
