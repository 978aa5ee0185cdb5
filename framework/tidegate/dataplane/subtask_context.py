"""The objects that a slot gives to the parts of a subtask: reader, operators, state and sinks.

One thread, the mailbox thread, calls all of these parts. They hand blocking calls (a flush, an
upload, a describe) to `run_io`. The outcome returns through `post`, which runs an action in the
mailbox thread between two batches. `fail` ends the attempt with an error. Any thread may call
`fail`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tidegate.config import Config
from tidegate.dataplane.counters import Counters
from tidegate.dataplane.sizes import record_size_limit
from tidegate.ids import Attempt, JobName, SubtaskId
from tidegate.ports.blobs import BlobStore
from tidegate.ports.drivers import Drivers
from tidegate.ports.kafka import TransactionAdmin

if TYPE_CHECKING:
    from tidegate.dataplane.state.local_files import LocalStateFiles

Action = Callable[[], None]


@dataclass(slots=True, kw_only=True)
class SubtaskContext:
    """The environment of one subtask."""

    job: JobName
    journal_id: str
    attempt: Attempt
    subtask: SubtaskId
    parallelism: int
    max_parallelism: int
    config: Config
    drivers: Drivers
    blobs: BlobStore
    """The checkpoint storage. Its paths begin with the job's name: `<job>/files/...`."""
    local: Path
    """An empty folder of this subtask. The next attempt may use the files that stay there."""
    transactions: TransactionAdmin
    """The transaction-admin client, one for the whole slot."""
    transaction_timeout_ms: int
    producer_pool_size: int
    transactional_id_indexes: range
    """Indexes of the transactional ids of each sink subtask."""
    post: Callable[[Action], None]
    """Function that runs an action in the mailbox thread. Any thread may call it; it never blocks.
    """
    run_io: Callable[[Action], None]
    """Function that runs an action in an I/O thread. An exception of the action goes to `fail`."""
    fail: Callable[[BaseException], None]
    counters: Counters = field(default_factory=Counters)
    max_message_bytes: Mapping[str, int] = field(default_factory=dict)
    """Limit `max.message.bytes` of each sink topic for which the brokers report one."""
    earlier: LocalStateFiles
    """State files that earlier attempts left on this host."""
    run: str = ""
    """Name of this run of the subtask, if one attempt may run a subtask several times, as Spark
    does.

    The name ensures that no two runs write the same file. Empty if an attempt runs each subtask
    once.
    """

    def record_bytes_max(
        self, sink: str, topic: str, declared: Mapping[str, str | float | bool]
    ) -> int:
        """Return the size in bytes of the largest record that a sink may write.

        `topic` and `declared` come from the sink's declaration.
        """
        configured = self.config.sink(sink)
        settings = self.connector_kafka(declared, configured.properties)
        return record_size_limit(settings, self.max_message_bytes.get(configured.topic or topic))

    def kafka(self, overrides: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the librdkafka settings of the job's cluster. `overrides` take precedence."""
        return self.config.kafka.client_settings(overrides)

    def connector_kafka(
        self, declared: Mapping[str, str | float | bool], configured: Mapping[str, str]
    ) -> dict[str, str]:
        """Return the same for one source or sink. `configured` takes precedence over `declared`."""
        as_text = {
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in declared.items()
        }
        return self.kafka({**as_text, **configured})
