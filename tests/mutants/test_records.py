"""Bugs in what happens to records between steps; and who finds them."""

from __future__ import annotations

import pytest

from tests.dataplane import test_on_error as policy_tests
from tests.dataplane import test_record_sharing as sharing_tests
from tests.dataplane import test_result_types as type_tests
from tests.dataplane import test_sizes as size_tests
from tests.dataplane import test_stop_iteration as stop_tests
from tests.dataplane.channels import test_record_writer as outlet_tests
from tests.mutants.finders import once
from tests.mutants.planting import Edit, Mutant, assert_found, mutant_params
from tidegate.api.records.values import ClassCheck
from tidegate.api.state.field_check import FieldCheck
from tidegate.dataplane.chain import OperatorChain
from tidegate.dataplane.channels.record_writer import KeyGroupWriter
from tidegate.dataplane.keying import KeyExtractor, StepKeys
from tidegate.dataplane.operators.fan_out import fan_out
from tidegate.dataplane.operators.keyed import Images, KeyedOperator
from tidegate.dataplane.operators.process import RefusableResults, SideOutputs
from tidegate.dataplane.operators.returned import results_guard
from tidegate.dataplane.operators.stateless import FusedSteps
from tidegate.dataplane.refusals import Refusals
from tidegate.dataplane.sinks.encoding import BatchEncoder
from tidegate.dataplane.sizes import shorten_dead_letter
from tidegate.dataplane.sources.decoding import BatchDecoder
from tidegate.errors import StorageError

BRANCHES_SHARE = (Edit(fan_out, "if not targets or immutable(of):", "if True:"),)
SHARED_WITH_KEY_BY = (
    Edit(
        OperatorChain.outputs,
        'shared = maker is not None and any(edge.partitioning == "key" for _, _, edge in readers)',
        "shared = False",
    ),
)
ANY_CLASS = (
    Edit(
        ClassCheck.first_wrong,
        "return min(map(kinds.index, wrong)) if wrong else None",
        "return None",
    ),
    Edit(FieldCheck.first_wrong, "if self._all_hold(self._holds, values):", "if True:"),
)
ONE_RESULT = (Edit(results_guard, 'if one or not hasattr(kind, "__iter__"):', "if False:"),)
RESULTS_STAY = (
    Edit(
        FusedSteps._process_tolerantly,
        "while positions and positions[-1] == position:",
        "while False:",
    ),
)
BY_OFFSET = (
    Edit(FusedSteps._process_tolerantly, "iter(range(len(batch)))", "iter(batch.offsets)"),
    Edit(
        FusedSteps._process_tolerantly,
        "position = len(batch) - operator.length_hint(remaining) - 1",
        "position = batch.offsets[len(batch) - operator.length_hint(remaining) - 1]",
    ),
    Edit(
        FusedSteps._process_tolerantly,
        "self._refusals[failing].refuse(batch, position, described(error))",
        "self._refusals[failing].refuse(batch, 0, described(error))",
    ),
    Edit(
        FusedSteps._process_tolerantly,
        "with_results(batch, values, positions)",
        "RecordBatch(values, positions, batch.topic_partition, batch.keys)",
    ),
)
SIDE_OUTPUTS_STAY = (Edit(SideOutputs.drop, "drop_results(offset, values, offsets)", "pass"),)
STATE_STAYS = (Edit(Images.undo, "cell.restore(image)", "pass"),)
YIELDED_STAY = (
    Edit(
        RefusableResults.refuse_last, "drop_results(position, self.values, self.positions)", "pass"
    ),
)
EVERYTHING_REFUSED = (
    Edit(
        Refusals.covers, "if not self.tolerant or isinstance(error, passes_through()):", "if False:"
    ),
)
LETTER_DOES_NOT_FIT = (
    Edit(shorten_dead_letter, "if record_bytes(key, value, headers) <= bytes_max:", "if True:"),
)
SHORT_KEYS = (
    Edit(StepKeys.of, "check_complete(len(keys), len(batch.values))", "pass"),
    Edit(KeyedOperator._process_strictly, "rows, strict=True", "rows, strict=False"),
)
SHORT_KNOWN = (
    Edit(KeyExtractor.keys, "right = known == len(keys) == len(batch.values)", "right = True"),
)
SHORT_RECEIVERS = (
    Edit(KeyGroupWriter.emit, "check_complete(len(receivers), len(batch.values))", "pass"),
)
SHORT_ENCODED = (Edit(BatchEncoder._map, "check_complete(len(done), len(batch.values))", "pass"),)
SHORT_DECODED = (
    Edit(BatchDecoder.decode, "check_complete(len(values) + len(bad), len(messages))", "pass"),
)


def does_not_fit() -> None:
    """`test_sizes.test_dead_letter_is_cut_to_the_limit_and_says_what_was_left_out`"""
    size_tests.test_dead_letter_is_cut_to_the_limit_and_says_what_was_left_out()


def not_about_the_record() -> None:
    """`test_on_error.test_policy_never_covers_errors_that_are_not_about_the_record`"""
    policy_tests.test_policy_never_covers_errors_that_are_not_about_the_record(
        StorageError("no answer")
    )


def held_by_a_map() -> None:
    """`test_record_sharing.test_object_held_by_a_map_is_not_changed_by_a_step_after_a_shuffle`"""
    sharing_tests.test_object_held_by_a_map_is_not_changed_by_a_step_after_a_shuffle(1)


def no_key_in_one_slot() -> None:
    """`test_stop_iteration.test_key_function_that_raises_stop_iteration_ends_the_attempt`"""
    words = stop_tests.BATCHES[1]
    stop_tests.test_key_function_that_raises_stop_iteration_ends_the_attempt(1, words)


def no_key_under_a_policy() -> None:
    """`test_stop_iteration.test_policy_of_key_by_refuses_only_records_that_raise_stop_iteration`"""
    words = stop_tests.BATCHES[1]
    stop_tests.test_policy_of_key_by_refuses_only_records_that_raise_stop_iteration(1, words)


def no_key_in_a_sink() -> None:
    """`test_stop_iteration.test_sink_loses_no_record_when_encoding_raises_stop_iteration`"""
    stop_tests.test_sink_loses_no_record_when_encoding_raises_stop_iteration(
        "key_by", stop_tests.BATCHES[1]
    )


def no_value_of_a_source() -> None:
    """`test_stop_iteration.test_source_loses_no_record_when_decoding_raises_stop_iteration`"""
    stop_tests.test_source_loses_no_record_when_decoding_raises_stop_iteration(
        "value", stop_tests.BATCHES[1]
    )


MUTANTS = [
    Mutant(
        "results of any class are written",
        ANY_CLASS,
        once(type_tests.test_batch_with_a_wrong_result_is_not_written),
        1,
        1,
    ),
    Mutant(
        "a record that is returned alone is iterated over",
        ONE_RESULT,
        once(type_tests.test_process_that_returns_a_typed_dict_as_one_result_is_refused),
        1,
        1,
    ),
    Mutant(
        "branches share record objects",
        BRANCHES_SHARE,
        once(
            sharing_tests.test_branch_that_changes_records_in_place_does_not_change_other_branches
        ),
        1,
        1,
    ),
    Mutant("a step shares records with a key_by", SHARED_WITH_KEY_BY, once(held_by_a_map), 1, 1),
    Mutant(
        "results of a refused record go on",
        RESULTS_STAY,
        once(policy_tests.test_results_that_a_failing_record_has_yielded_are_left_out),
        1,
        1,
    ),
    Mutant(
        "results of a refused record are found by their offset",
        BY_OFFSET,
        once(policy_tests.test_results_of_another_record_of_the_same_offset_stay),
        1,
        1,
    ),
    Mutant(
        "side outputs of a refused record go on",
        SIDE_OUTPUTS_STAY,
        once(policy_tests.test_side_outputs_of_a_failing_record_are_left_out),
        1,
        1,
    ),
    Mutant(
        "state keeps what a refused record did",
        STATE_STAYS,
        once(policy_tests.test_state_of_the_key_is_rolled_back_when_a_record_fails),
        1,
        1,
    ),
    Mutant(
        "results of a keyed step's refused record go on",
        YIELDED_STAY,
        once(policy_tests.test_state_of_the_key_is_rolled_back_when_a_record_fails),
        1,
        1,
    ),
    Mutant(
        "a policy covers errors of the runtime",
        EVERYTHING_REFUSED,
        once(not_about_the_record),
        1,
        1,
    ),
    Mutant("StopIteration ends the keys", SHORT_KEYS, once(no_key_in_one_slot), 1, 1),
    Mutant(
        "StopIteration ends a split by key",
        SHORT_RECEIVERS,
        once(outlet_tests.test_error_names_the_record_when_a_key_function_raises_stop_iteration),
        1,
        1,
    ),
    Mutant("StopIteration ends checked keys", SHORT_KNOWN, once(no_key_under_a_policy), 1, 1),
    Mutant("StopIteration ends encoding", SHORT_ENCODED, once(no_key_in_a_sink), 1, 1),
    Mutant("StopIteration ends decoding", SHORT_DECODED, once(no_value_of_a_source), 1, 1),
    Mutant("a dead letter may not fit", LETTER_DOES_NOT_FIT, once(does_not_fit), 1, 1),
]


@pytest.mark.parametrize("mutant", mutant_params(MUTANTS))
def test_the_mutant_is_found(mutant: Mutant) -> None:
    assert_found(mutant)
