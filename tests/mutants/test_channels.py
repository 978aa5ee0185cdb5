"""Bugs in channels, the exchange and what refuses stale attempts; and who finds them."""

from __future__ import annotations

import pytest

from tests.controlplane.jobmaster import test_machine as machine_tests
from tests.controlplane.jobmaster import test_publications as publication_tests
from tests.controlplane.jobmaster import test_stale as jobmaster_tests
from tests.dataplane.channels import test_record_writer as outlet_tests
from tests.dataplane.channels.test_flow import Flow
from tests.drivers.exchange import test_wire as wire_tests
from tests.mutants.finders import once
from tests.mutants.planting import Edit, Mutant, assert_found, mutant_params
from tests.simulator.tests import test_exchange as exchange_tests
from tests.simulator.tests.contracts import World
from tests.simulator.tests.traffic import Traffic
from tests.slot import test_stale as slot_tests
from tidegate.controlplane.jobmaster.attempt import LiveAttempt
from tidegate.controlplane.jobmaster.machine import JobMachine
from tidegate.controlplane.jobmaster.service import JobMaster
from tidegate.dataplane.channels.frames import data_frame
from tidegate.dataplane.channels.input_gate import InputChannel
from tidegate.dataplane.channels.record_writer import KeyGroupWriter, RemoteOutputChannel
from tidegate.dataplane.input_task import InputTask
from tidegate.dataplane.subtask import Subtask
from tidegate.drivers.exchange import handshake
from tidegate.drivers.exchange.wire import FrameReader
from tidegate.graph.key_groups import owners
from tidegate.slot.main import Slot


def traffic(seed: int) -> None:
    """simulated traffic"""
    Traffic(seed).run()


def flow(seed: int) -> None:
    """a flow through two channels"""
    Flow(seed).run()


def contract(seed: int) -> None:
    """the exchange's contract"""
    world = World(seed)
    tests = exchange_tests.TestSimExchange()
    tests._world = world
    try:
        tests.test_a_connection_of_another_attempt_is_refused(
            world=exchange_tests.SimSlots(world), job="job", attempt=2, early=bool(seed % 2)
        )
    finally:
        world.scheduler.close()


LATE_BARRIER = (
    Edit(
        Subtask.take_snapshot,
        "    for record_writer in self.chain.record_writers:\n"
        "        record_writer.emit_control(barrier)\n",
        '    self.__dict__.setdefault("late", []).append(barrier)\n',
    ),
    Edit(
        InputTask._take,
        "            (self._emits[channel] if self._emits else self._emit)(element)\n",
        "            (self._emits[channel] if self._emits else self._emit)(element)\n"
        '            for barrier in self.__dict__.pop("late", []):\n'
        "                for record_writer in self.chain.record_writers:\n"
        "                    record_writer.emit_control(barrier)\n",
    ),
)
SHARED_BUFFER = (
    Edit(
        data_frame,
        "return parts",
        'shared = data_frame.__dict__.setdefault("shared", bytearray())\n'
        '    shared[:] = b"".join(parts)\n'
        "    return [shared]",
    ),
)
SHARED_LIST = (
    Edit(
        data_frame,
        "parts = [_DATA_HEAD.pack(VERSION, FrameKind.DATA, len(encoded_batches))]",
        'parts = data_frame.__dict__.setdefault("shared", [])\n'
        "    parts[:] = [_DATA_HEAD.pack(VERSION, FrameKind.DATA, len(encoded_batches))]",
    ),
)
READ_BUFFER = (
    Edit(
        FrameReader.take,
        "bytes(view[at + _HEAD.size : end])",
        "memoryview(buffer)[at + _HEAD.size : end]",
    ),
)
LEAK_AT_GRANT = (
    Edit(
        InputChannel._next_of_frame,
        "self._send_credit(returned_credit)",
        "self._send_credit(max(1, returned_credit - 1))",
    ),
)
LEAK_AT_SENDER = (
    Edit(
        RemoteOutputChannel.add_credit,
        "self.credit += frames\n",
        "self.credit += min(frames, 3)\n",
    ),
)
GROUPS_BY_PARALLELISM = (
    Edit(
        KeyGroupWriter.emit,
        "key_groups(keys_bytes, self._max_parallelism)",
        "key_groups(keys_bytes, len(self.channels))",
    ),
)
OLDER_PARALLELISM = (
    Edit(
        owners,
        "subtask_of(group, parallelism, max_parallelism)",
        "subtask_of(group, max(1, parallelism - 1), max_parallelism)",
    ),
)
STALE_AT_EXCHANGE = (Edit(handshake.rejection_reason, "attempt=attempt", "attempt=hello.attempt"),)
STALE_AT_SLOT = (
    Edit(
        Slot._handle,
        "(message.job, message.attempt) != own",
        "message.job != start.job",
    ),
)
STALE_AT_JOBMASTER = (Edit(JobMaster.receive, "and message.attempt != live:", "and live is None:"),)
STALE_IN_QUEUE = (
    Edit(
        JobMaster._handle,
        "live is not None and message.attempt == live.attempt",
        "live is not None",
    ),
)
LATE_PUBLICATION = (Edit(LiveAttempt.handle_publication, "elif not self.ended:", "else:"),)
STALE_IN_MACHINE = (
    Edit(
        JobMachine._is_stale,
        "return isinstance(event, AttemptEvent) and event.attempt != self.attempt",
        "return False",
    ),
)

MUTANTS = [
    Mutant("a barrier is forwarded after unblocking", LATE_BARRIER, traffic, 10, 9),
    Mutant("a buffer is used again while its frame is in flight", SHARED_BUFFER, traffic, 10, 9),
    Mutant("a list of parts is used again while its frame waits", SHARED_LIST, flow, 10, 5),
    Mutant(
        "a read buffer is handed on and read into again",
        READ_BUFFER,
        once(wire_tests.test_payloads_do_not_change_when_the_buffer_is_read_into_again),
        1,
        1,
    ),
    Mutant("a credit leaks when it is granted (traffic)", LEAK_AT_GRANT, traffic, 10, 4),
    Mutant("a credit leaks when it is granted (flow)", LEAK_AT_GRANT, flow, 10, 3),
    Mutant("a credit leaks when it comes back", LEAK_AT_SENDER, flow, 10, 1),
    Mutant("key groups are counted by parallelism", GROUPS_BY_PARALLELISM, traffic, 10, 9),
    Mutant("keys are routed by an older parallelism (traffic)", OLDER_PARALLELISM, traffic, 10, 9),
    Mutant(
        "keys are routed by an older parallelism (property)",
        OLDER_PARALLELISM,
        once(outlet_tests.test_records_go_to_the_owner_of_their_key_group_in_order),
        1,
        1,
    ),
    Mutant("a connection of another attempt is welcome", STALE_AT_EXCHANGE, contract, 10, 10),
    Mutant(
        "a slot obeys another attempt",
        STALE_AT_SLOT,
        once(slot_tests.test_a_message_of_another_attempt_is_refused_by_a_slot),
        1,
        1,
    ),
    Mutant(
        "a JobMaster takes a message of another attempt",
        STALE_AT_JOBMASTER,
        once(jobmaster_tests.test_a_message_of_another_attempt_is_refused),
        1,
        1,
    ),
    Mutant(
        "a JobMaster obeys a message that waited longer than its attempt",
        STALE_IN_QUEUE,
        once(jobmaster_tests.test_queued_message_is_ignored_if_its_attempt_has_ended),
        1,
        1,
    ),
    Mutant(
        "an attempt obeys an event of its publication after its end",
        LATE_PUBLICATION,
        once(publication_tests.test_late_failure_of_a_publication_does_not_change_the_error),
        1,
        1,
    ),
    Mutant(
        "a job machine takes an event of another attempt",
        STALE_IN_MACHINE,
        once(machine_tests.test_messages_of_an_older_attempt_change_nothing),
        1,
        1,
    ),
]


@pytest.mark.parametrize("mutant", mutant_params(MUTANTS))
def test_the_mutant_is_found(mutant: Mutant) -> None:
    assert_found(mutant)
