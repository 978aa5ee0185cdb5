"""What a user reads when their code raises while it processes a record.

The failing step, where it was written, the record's topic, partition and offset, and the exception;
the user's own traceback travels as the cause. Called only on the way out of a failed batch: nothing
here costs a record that works.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

from tidegate.elements import RecordBatch
from tidegate.errors import TidegateError, UserCodeError
from tidegate.graph.logical import Node


def user_code_error(
    pipeline: str, node: Node, batch: RecordBatch, remaining: Iterator[Any], error: Exception
) -> TidegateError:
    """The error to raise (from `error`) for the record that was last taken from `remaining`.

    `remaining` is a list iterator over the batch's values: its length hint tells where the loop was
    without a counter that every record would pay for.

    An error of tidegate's own passes through as it is: it already names what is wrong.
    """
    if isinstance(error, TidegateError):
        return error
    topic, partition = batch.origin
    offset = batch.offsets[len(batch.values) - operator.length_hint(remaining) - 1]
    name = f"uid {node.uid!r}" if node.uid else f"{node.id!r}"
    return UserCodeError(
        f"{pipeline}: step {name} ({node.place}) raised {type(error).__name__}: {error}, on the "
        f"record that came from {topic}-{partition} at offset {offset}. Mend the code or filter "
        "such records out before this step; the job restarts from its last checkpoint as the "
        "restart strategy says."
    )
