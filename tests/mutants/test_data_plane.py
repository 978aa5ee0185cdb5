"""Bugs in sources, tasks, sinks and state; and who finds them."""

from __future__ import annotations

import pytest

from tests.checkpoint import test_restore as restore_tests
from tests.checkpoint import test_state_names as name_tests
from tests.dataplane import test_task as task_tests
from tests.dataplane.sinks import test_writer as writer_tests
from tests.dataplane.state import test_renamed_states as renamed_tests
from tests.dataplane.state import test_snapshots as state_tests
from tests.dataplane.state.job import Step
from tests.mutants.finders import (
    once,
    restored,
    simulator,
    simulator_with_short_timeouts,
    task,
    writer,
)
from tests.mutants.planting import Edit, Mutant, assert_found, mutant_params
from tests.mutants.test_channels import traffic
from tidegate.checkpoint.restore import assign_splits
from tidegate.checkpoint.state_changes import _unknown_state_refusals
from tidegate.dataplane.input_task import InputTask
from tidegate.dataplane.sinks.delivery import TransactionalDelivery
from tidegate.dataplane.sinks.id_pool import TransactionalIdPool
from tidegate.dataplane.sinks.kafka import KafkaSinkWriter
from tidegate.dataplane.sinks.pool import ProducerPool
from tidegate.dataplane.source_task import SourceTask
from tidegate.dataplane.sources.kafka import KafkaSourceReader
from tidegate.dataplane.state.restored_names import delete_rows
from tidegate.dataplane.state.snapshots import _copy
from tidegate.ports.kafka import TransactionState


def not_as_it_was_made(bench: writer_tests.Bench) -> None:
    """`test_writer.test_transaction_with_an_unexpected_state_or_epoch_fails_the_attempt`"""
    writer_tests.test_transaction_with_an_unexpected_state_or_epoch_fails_the_attempt(
        bench, TransactionState.COMPLETE_ABORT, 0
    )


def rows_of_a_dropped_state(step: Step, _parallelism: int) -> None:
    """`test_renamed_states.test_all_states_may_be_dropped`"""
    renamed_tests.test_all_states_may_be_dropped(step)


UNDECLARED_IGNORED = (
    Edit(
        _unknown_state_refusals,
        "    for name in match.unknown:\n",
        "    for name in ():\n",
    ),
)
DROPPED_STAY = (
    Edit(delete_rows, "    for stored_name in stored_names:", "    for stored_name in ():"),
)
CUTS_THE_POSITIONS = (
    task_tests.test_barrier_is_injected_after_the_records_read_and_snapshot_has_these_offsets
)
NOT_FROM_BEHIND = (
    writer_tests.test_acknowledgement_never_lists_a_transaction_opened_after_the_barrier
)
NOT_BEFORE_THE_FLUSH = (
    writer_tests.test_next_transaction_gets_no_record_before_the_flush_has_returned
)
LATE_SNAPSHOT = (
    Edit(
        InputTask._carry_out,
        "                self.take_snapshot(\n"
        "                    barrier, alignment_ms=self._take_alignment_ms(barrier.checkpoint)\n"
        "                )\n",
        "                self.__dict__['late'] = barrier\n",
    ),
    Edit(
        InputTask.step,
        "    if found is None:\n        return writable and self._fire()\n    self._take(*found)\n",
        "    if found is None or not isinstance(found[1], RecordBatch):\n"
        "        if 'late' in self.__dict__:\n"
        "            self.take_snapshot(self.__dict__.pop('late'))\n"
        "    if found is None:\n        return writable and self._fire()\n"
        "    self._take(*found)\n"
        "    if isinstance(found[1], RecordBatch) and 'late' in self.__dict__:\n"
        "        self.take_snapshot(self.__dict__.pop('late'))\n",
    ),
)
LATE_OFFSET = (
    Edit(
        SourceTask._inject,
        "    splits = self.reader",
        "    if self._started and not (self._ended or self._final):\n"
        "        self._read(0.0)\n"
        "    splits = self.reader",
    ),
)
ONLY_WHAT_CHANGED = (
    Edit(
        SourceTask._inject,
        "    self._final = barrier.final\n",
        "    told = self.__dict__.setdefault('told', {})\n"
        "    splits = tuple(\n"
        "        split for split in splits if told.get(split.topic_partition) != split.offset\n"
        "    )\n"
        "    told.update({split.topic_partition: split.offset for split in splits})\n"
        "    self._final = barrier.final\n",
    ),
)
EARLY_OFFSET = (
    Edit(SourceTask.step, "if self._barriers and not self._pending:", "if self._barriers:"),
    Edit(
        SourceTask._inject,
        'check(not self._pending, "a barrier is injected only after all that was read is emitted")',
        "pass",
    ),
)
AFTER_THE_FLUSH = (
    Edit(
        KafkaSinkWriter.write,
        "        self._send(interval.lease, encoded)\n        return\n",
        "        held, batch = self.__dict__.get('held'), (interval.lease, encoded)\n"
        "        plain = interval.lease.pooled is None\n"
        "        self.__dict__['held'] = batch if plain else None\n"
        "        if held is not None:\n"
        "            self._send(*held)\n"
        "        if not plain:\n"
        "            self._send(*batch)\n"
        "        return\n",
    ),
    Edit(
        KafkaSinkWriter._flushed,
        "    self._flushing = False\n",
        "    self._flushing = False\n"
        "    held = self.__dict__.pop('held', None)\n"
        "    if held is not None:\n"
        "        self._send(*held)\n",
    ),
)
FLUSH_AGAIN = (
    Edit(
        KafkaSinkWriter._prepare,
        "    self._delivery.flush(lease, final=final)\n",
        "    try:\n"
        "        self._delivery.flush(lease, final=final)\n"
        "    except Exception:\n"
        "        self._delivery.flush(lease, final=final)\n",
    ),
)
DELIVERY_IGNORED = (
    Edit(
        KafkaSinkWriter._prepare,
        "    self._delivery.flush(lease, final=final)\n",
        "    try:\n        self._delivery.flush(lease, final=final)\n"
        "    except Exception:\n        pass\n",
    ),
)
NO_DESCRIBE = (
    Edit(
        TransactionalDelivery.describe,
        "        description is None\n"
        "        or description.state is not TransactionState.ONGOING\n"
        "        or not pooled.matches(description)\n",
        "        description is None\n",
    ),
)
NAMES_EMPTY = (
    Edit(
        KafkaSinkWriter._send_pending,
        "        self._intervals.popleft()\n",
        "        first.lease = first.lease or self._delivery.take()\n"
        "        self._intervals.popleft()\n",
    ),
    Edit(
        TransactionalDelivery.describe,
        "description.state is not TransactionState.ONGOING",
        "description.state not in (TransactionState.ONGOING, TransactionState.EMPTY)",
    ),
)
BEHIND_THE_BARRIER = (
    Edit(
        KafkaSinkWriter._prepared,
        "    self._report()\n",
        "    self._closing.remove(closing)\n"
        "    self._closing.appendleft(closing)\n"
        "    self._report()\n",
    ),
)
BEFORE_THE_FLUSH = (
    Edit(KafkaSinkWriter._send_pending, "while not self._flushing:", "while self._intervals:"),
)
DROPS_PREPARED = (
    Edit(
        TransactionalIdPool.transactions,
        "return tuple(transaction for _, transaction in self._prepared.values())",
        "newest = max((checkpoint for checkpoint, _ in self._prepared.values()), default=None)\n"
        "    return tuple(\n"
        "        transaction for at, transaction in self._prepared.values() if at == newest\n"
        "    )",
    ),
)
FREE_AT_PREPARE = (
    Edit(
        TransactionalIdPool.prepared,
        "    self._prepared[index] = (checkpoint, transaction)\n",
        "    self._prepared[index] = (checkpoint, transaction)\n"
        "    self._states[index] = IdState.FREE\n"
        "    self._free.append(index)\n",
    ),
)
FREE_ONCE_ENDED = (
    Edit(
        TransactionalIdPool.ended,
        "    self._move(index, IdState.ENDED)\n",
        "    self._move(index, IdState.ENDED)\n"
        "    self._move(index, IdState.FREE)\n"
        "    self._free.append(index)\n",
    ),
)
ONE_PRODUCER = (
    Edit(
        ProducerPool.take,
        "    taken = self._pooled.popleft()\n    self._id_pool.taken(taken.index)\n",
        "    taken = self._pooled[0]\n    self._id_pool._states[taken.index] = IdState.CURRENT\n",
    ),
)
SPLIT_LOST = (
    Edit(
        assign_splits,
        "return tuple(tuple(part) for part in dealt)",
        "return tuple(tuple(part[-1:] if parallelism > 1 else part) for part in dealt)",
    ),
)
BEFORE_THE_MARKERS = (Edit(KafkaSourceReader.snapshot, "    self._update_positions()\n", ""),)
STATE_LOST = (Edit(_copy, "new.write(batch, ())", "new.write(batch[1:], ())"),)

MUTANTS = [
    Mutant("a record is taken between barrier and snapshot", LATE_SNAPSHOT, traffic, 10, 1),
    Mutant("a record is taken between barrier and snapshot", LATE_SNAPSHOT, simulator, 40, 1),
    Mutant(
        "an offset is recorded after more was read",
        LATE_OFFSET,
        task(CUTS_THE_POSITIONS),
        1,
        1,
    ),
    Mutant("an offset is recorded after more was read", LATE_OFFSET, simulator, 40, 1),
    Mutant(
        "an unchanged split is left out of the next checkpoint",
        ONLY_WHAT_CHANGED,
        simulator,
        12,
        1,
    ),
    Mutant("a barrier overtakes what was read", EARLY_OFFSET, simulator, 40, 1),
    Mutant("a position stands before the markers", BEFORE_THE_MARKERS, simulator, 40, 1),
    Mutant(
        "a flush is tried again after an exception",
        FLUSH_AGAIN,
        writer(writer_tests.test_a_flush_that_failed_is_not_tried_again),
        1,
        1,
    ),
    Mutant("a flush is tried again after an exception", FLUSH_AGAIN, simulator, 40, 0),
    Mutant(
        "a delivery error is ignored",
        DELIVERY_IGNORED,
        writer(writer_tests.test_failed_flush_fails_the_attempt_and_acknowledges_no_checkpoint),
        1,
        1,
    ),
    Mutant("a delivery error is ignored", DELIVERY_IGNORED, simulator, 40, 0),
    Mutant(
        "nothing is looked at when it is prepared",
        NO_DESCRIBE,
        writer(not_as_it_was_made),
        1,
        1,
        "no Describe at prepare",
    ),
    Mutant(
        "nothing is looked at when it is prepared",
        NO_DESCRIBE,
        simulator,
        40,
        0,
        "no Describe at prepare",
    ),
    Mutant(
        "an empty transaction is named",
        NAMES_EMPTY,
        writer(writer_tests.test_interval_without_records_uses_no_transaction_and_no_producer),
        1,
        1,
    ),
    Mutant("an empty transaction is named", NAMES_EMPTY, simulator, 12, 0),
    Mutant(
        "a transaction from behind the barrier is named",
        BEHIND_THE_BARRIER,
        writer(NOT_FROM_BEHIND),
        1,
        1,
    ),
    Mutant("a transaction from behind the barrier is named", BEHIND_THE_BARRIER, simulator, 40, 0),
    Mutant(
        "a transaction from behind the barrier is named",
        BEHIND_THE_BARRIER,
        simulator_with_short_timeouts(60),
        60,
        0,
    ),
    Mutant(
        "records are sent before the flush of those before has returned",
        BEFORE_THE_FLUSH,
        writer(NOT_BEFORE_THE_FLUSH),
        1,
        1,
    ),
    Mutant(
        "an at-least-once sink writes records of a checkpoint after its flush",
        AFTER_THE_FLUSH,
        simulator,
        40,
        1,
    ),
    Mutant(
        "what was prepared is dropped when its checkpoint aborts",
        DROPS_PREPARED,
        writer(
            writer_tests.test_barriers_pass_while_a_flush_is_under_way_and_are_answered_in_order
        ),
        1,
        1,
        "aborted checkpoint drops prepared",
    ),
    Mutant(
        "what was prepared is dropped when its checkpoint aborts",
        DROPS_PREPARED,
        simulator,
        40,
        0,
        "aborted checkpoint drops prepared",
    ),
    Mutant(
        "what was prepared is dropped when its checkpoint aborts",
        DROPS_PREPARED,
        simulator_with_short_timeouts(40),
        40,
        1,
        "aborted checkpoint drops prepared",
    ),
    Mutant(
        "a slot is free once it is prepared",
        FREE_AT_PREPARE,
        once(writer_tests.test_transactional_id_is_initialised_again_only_after_it_was_released),
        1,
        1,
        "slot reuse before commit",
    ),
    Mutant(
        "a slot is free once it is prepared",
        FREE_AT_PREPARE,
        simulator,
        40,
        1,
        "slot reuse before commit",
    ),
    Mutant(
        "a slot is free once it is committed",
        FREE_ONCE_ENDED,
        once(writer_tests.test_transactional_id_is_initialised_again_only_after_it_was_released),
        1,
        1,
        "slot reuse once committed",
    ),
    Mutant(
        "a slot is free once it is committed",
        FREE_ONCE_ENDED,
        simulator,
        40,
        0,
        "slot reuse once committed",
    ),
    Mutant(
        "a producer serves many transactions",
        ONE_PRODUCER,
        writer(writer_tests.test_each_checkpoint_interval_has_its_own_producer),
        1,
        1,
        "one producer, many transactions",
    ),
    Mutant(
        "a split is lost at a restore",
        SPLIT_LOST,
        once(restore_tests.test_every_key_group_and_every_split_has_exactly_one_owner),
        1,
        1,
    ),
    Mutant("a split is lost at a restore", SPLIT_LOST, simulator, 12, 0),
    Mutant(
        "an entry of keyed state is lost at a restore",
        STATE_LOST,
        restored(state_tests.test_restore_at_another_parallelism_has_each_key_once),
        1,
        1,
    ),
    Mutant("an entry of keyed state is lost at a restore", STATE_LOST, simulator, 40, 1),
    Mutant(
        "a restore ignores state that the code does not declare",
        UNDECLARED_IGNORED,
        once(name_tests.test_state_that_the_code_does_not_declare_is_refused_with_both_remedies),
        1,
        1,
    ),
    Mutant(
        "the rows of a dropped state stay",
        DROPPED_STAY,
        restored(rows_of_a_dropped_state),
        1,
        1,
    ),
]


@pytest.mark.parametrize("mutant", mutant_params(MUTANTS))
def test_the_mutant_is_found(mutant: Mutant) -> None:
    assert_found(mutant)
