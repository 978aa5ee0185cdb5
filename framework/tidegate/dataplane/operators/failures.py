"""What a user reads when their code raises: while it processes a record, opens or closes.

The failing step, where it was written, the record's topic, partition and offset, and the exception;
the user's own traceback travels as the cause. Called only on the way out of a failed batch: nothing
here costs a record that works.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any, Literal

from tidegate.errors import StateValueError, TidegateError, UserCodeError
from tidegate.graph.stream_graph import Node
from tidegate.stream_elements import RecordBatch


class NotResultsError(Exception):
    """A function returned what is no iterable of results; `user_code_error` names the step."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(what)
        self.what, self.remedy = what, remedy


def user_code_error(
    pipeline: str, node: Node, batch: RecordBatch, remaining: Iterator[Any], error: Exception
) -> TidegateError:
    """The error to raise (from `error`) for the record that was last taken from `remaining`.

    `remaining` is a list iterator over the batch's values: its length hint tells where the loop was
    without a counter that every record would pay for.

    An error of tidegate's own passes through as it is: it already names what is wrong. What state
    says of a value does not know the record.
    """
    if isinstance(error, TidegateError) and not isinstance(error, StateValueError):
        return error
    topic, partition = batch.origin
    index = len(batch.values) - operator.length_hint(remaining) - 1
    if isinstance(error, StateValueError):
        return StateValueError(
            f"{pipeline}: step {_name(node)} ({node.place}): {error}. The record came from "
            f"{topic}-{partition} at offset {batch.offsets[index]}. Correct the code; the job "
            "fails, because the record would do the same after a restart."
        )
    if isinstance(error, NotResultsError):
        return result_error(pipeline, node, batch, index, error.what, error.remedy)
    offset = batch.offsets[index]
    return UserCodeError(
        f"{pipeline}: step {_name(node)} ({node.place}) raised {type(error).__name__}: {error}, "
        f"on the record that came from {topic}-{partition} at offset {offset}. Mend the code or "
        "filter such records out before this step; the job restarts from its last checkpoint as "
        "the restart strategy says."
    )


def call_lifecycle_method(
    pipeline: str, node: Node, method: Literal["open", "close"], call: Callable[[], None]
) -> None:
    """Call `open` or `close` of a user's function; UserCodeError if it raises.

    A service that does not answer just now is no reason to fail the job: a restart may find it.
    """
    try:
        call()
    except TidegateError:
        raise
    except Exception as error:
        raise UserCodeError(
            f"{pipeline}: {method}() of step {_name(node)} ({node.place}) raised "
            f"{type(error).__name__}: {error}. Fix the code, or the service that it uses. The job "
            "restarts from its last checkpoint as the restart strategy says."
        ) from error


def result_error(
    pipeline: str, node: Node, batch: RecordBatch, index: int, what: str, remedy: str
) -> UserCodeError:
    """The error to raise for what a step gave for value `index` of a batch; `what` says what."""
    topic, partition = batch.origin
    return UserCodeError(
        f"{pipeline}: step {_name(node)} ({node.place}) {what}, for the record that came from "
        f"{topic}-{partition} at offset {batch.offsets[index]}. {remedy} The job restarts from its "
        "last checkpoint as the restart strategy says."
    )


def _name(node: Node) -> str:
    return f"uid {node.uid!r}" if node.uid else f"{node.id!r}"
