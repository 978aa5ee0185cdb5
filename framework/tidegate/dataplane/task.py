"""A subtask: the loop body that the slot's mailbox thread runs, one batch at a time.

`SourceTask` (`source_task.py`) reads splits. `InputTask` (`input_task.py`) reads channels through
the alignment machine. Both push batches through an `OperatorChain`, and both take their part of a
checkpoint in the same way (`subtask.py`).

Timers and windows that are due fire in pieces, one in each step. Meanwhile the subtask takes no
records. It takes a barrier between two pieces, and the snapshot holds what has not fired. A final
barrier waits for what is due, as long as the outputs can take it: so the results of a run that has
read its input do not depend on its last piece.

Invariants: nothing is consumed between the last barrier of a checkpoint and its snapshot. Nothing
is emitted between the snapshot and the barrier downstream. A subtask whose outputs cannot take more
reads no records and fires nothing. `step` never blocks, except that a source may wait up to
`timeout_s` for records.
"""

from __future__ import annotations

from tidegate.dataplane.input_task import InputTask
from tidegate.dataplane.source_task import SourceTask

Task = SourceTask | InputTask
