"""The error for user code that raises while it processes a record, opens or closes.

The error names the failing step, the location where the step was written, the exception, and the
record's topic, partition and offset. The user's own traceback is attached as the cause. This module
runs only after a batch has failed, so a record that works costs nothing here.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any, Literal

from tidegate.api.state.state import ValueCell
from tidegate.api.time.timers import Fired
from tidegate.dataplane.columns import origin_of
from tidegate.errors import StateValueError, TidegateError, UserCodeError, passes_through
from tidegate.graph.stream_graph import Node
from tidegate.message_text import clause
from tidegate.stream_elements import RecordBatch
from tidegate.user_exceptions import described, process_ends, repr_of


class NotResultsError(Exception):
    """A function returned something that is not an iterable of results. `user_code_error` adds the
    step.
    """

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(what)
        self.what, self.remedy = what, remedy


def user_code_error(
    pipeline: str, node: Node, batch: RecordBatch, remaining: Iterator[Any], error: BaseException
) -> BaseException:
    """Return the error to raise (from `error`) for the record that was last taken from `remaining`.

    `remaining` is a list iterator over the values of the batch. Its length hint gives the position
    in the loop, without a counter that would cost time for every record.

    An error of tidegate itself is returned unchanged, because it already names the problem, and so
    is the end of the process. A StateValueError does not know the record, so the record is added.
    """
    if isinstance(error, process_ends()):
        return error
    if isinstance(error, TidegateError) and not isinstance(error, StateValueError):
        return error
    index = len(batch.values) - operator.length_hint(remaining) - 1
    if isinstance(error, StateValueError):
        return StateValueError(
            f"{pipeline}: step {_name(node)} ({node.location}): {clause(error)}. The record came "
            f"from {origin_of(batch, index)}. Correct the code; the job fails, because the record "
            "would do the same after a restart."
        )
    if isinstance(error, NotResultsError):
        return result_error(pipeline, node, batch, index, error.what, error.remedy)
    return UserCodeError(
        f"{pipeline}: step {_name(node)} ({node.location}) raised "
        f"{clause(described(error))}, "
        f"on the record that came from {origin_of(batch, index)}. {_state_hint(error)}Correct the "
        "code or filter such records out before this step; the job restarts from its last "
        "checkpoint as the restart strategy says."
    )


def timer_error(
    pipeline: str, node: Node, fired: Fired, key: object, error: BaseException
) -> UserCodeError:
    """Return the error to raise (from `error`) if `on_timer` has raised. No policy covers it,
    because there is no record that could be refused.
    """
    if isinstance(error, NotResultsError):
        what, remedy = error.what, error.remedy
    else:
        what = f"raised {clause(described(error))}"
        remedy = f"{_state_hint(error)}Correct the code."
    return UserCodeError(
        f"{pipeline}: step {_name(node)} ({node.location}): on_timer {what}, on {fired!r} of key "
        f"{repr_of(key)}. {remedy} The job restarts from its last checkpoint as the restart "
        "strategy says."
    )


def call_lifecycle_method(
    pipeline: str, node: Node, method: Literal["open", "close"], call: Callable[[], None]
) -> None:
    """Call `open` or `close` of a user's function. Raise UserCodeError if it raises.

    The error does not fail the job permanently. A service that does not answer now may answer after
    a restart.
    """
    try:
        call()
    except passes_through():
        raise
    except BaseException as error:
        raise UserCodeError(
            f"{pipeline}: {method}() of step {_name(node)} ({node.location}) raised "
            f"{clause(described(error))}. Fix the code, or the service that it uses. "
            "The job restarts from its last checkpoint as the restart strategy says."
        ) from error


def result_error(
    pipeline: str, node: Node, batch: RecordBatch, index: int, what: str, remedy: str
) -> UserCodeError:
    """Return the error for the result of value `index` of a batch. `what` describes the result."""
    return UserCodeError(
        f"{pipeline}: step {_name(node)} ({node.location}) {what}, for the record that came from "
        f"{origin_of(batch, index)}. {remedy} The job restarts from its last checkpoint as the "
        "restart strategy says."
    )


def _state_hint(error: BaseException) -> str:
    """Return a sentence for code that uses a state as if it were its value; empty otherwise."""
    if isinstance(error, AttributeError) and isinstance(error.obj, ValueCell):
        return (
            "A state is not its value: write .value behind its name, as in "
            f"self.total.value.{error.name}. "
        )
    return ""


def _name(node: Node) -> str:
    return f"uid {node.uid!r}" if node.uid else f"{node.id!r}"
