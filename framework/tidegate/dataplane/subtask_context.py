"""What a subtask's parts (reader, operators, state, sinks) are given by the slot that runs them.

One thread, the mailbox thread, calls all of them. Whatever blocks (a flush, an upload, a describe)
is handed to `run_io`, and its outcome comes back through `post`, which runs an action in the
mailbox thread between two batches. `fail` ends the attempt with an error; it may be called from any
thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tidegate.config import Config, ConnectorSettings
from tidegate.dataplane.counters import Counters
from tidegate.dataplane.sizes import largest_record
from tidegate.dataplane.state.local_files import LocalStateFiles
from tidegate.ids import Attempt, JobName, SubtaskId
from tidegate.ports.blobs import BlobStore
from tidegate.ports.drivers import Drivers
from tidegate.ports.kafka import TransactionAdmin

Action = Callable[[], None]


@dataclass(slots=True, kw_only=True)
class SubtaskContext:
    """The surroundings of one subtask."""

    job: JobName
    journal: str
    attempt: Attempt
    subtask: SubtaskId
    parallelism: int
    max_parallelism: int
    config: Config
    drivers: Drivers
    blobs: BlobStore
    """Paths in it begin with the job's name: `<job>/files/...`."""
    local: Path
    """An empty folder of this subtask; what it leaves there may serve the next attempt."""
    transactions: TransactionAdmin
    """One for the whole slot."""
    transaction_timeout_ms: int
    warm_producers: int
    transaction_slots: range
    """Numbers of the transactional ids of each sink subtask."""
    post: Callable[[Action], None]
    """Run an action in the mailbox thread; from any thread, never blocks."""
    run_io: Callable[[Action], None]
    """Run an action in an I/O thread; what it raises goes to `fail`."""
    fail: Callable[[BaseException], None]
    counters: Counters = field(default_factory=Counters)
    max_message_bytes: Mapping[str, int] = field(default_factory=dict)
    """Of the topics of sinks, where the brokers tell it."""
    earlier: LocalStateFiles = field(default_factory=LocalStateFiles)
    """What earlier attempts left on this host."""
    run: str = ""
    """Names this run of the subtask where one attempt may run a subtask several times, as Spark
    does: no two runs write the same file. Empty where an attempt runs each subtask once.
    """

    def record_bytes_max(
        self, sink: str, topic: str, declared: Mapping[str, str | float | bool]
    ) -> int:
        """Bytes of the largest record that a sink may write; `topic` and `declared` are those of
        its declaration.
        """
        configured = self.config.sinks.get(sink, ConnectorSettings())
        settings = self.connector_kafka(declared, configured.properties)
        return largest_record(settings, self.max_message_bytes.get(configured.topic or topic))

    def kafka(self, overrides: Mapping[str, str] | None = None) -> dict[str, str]:
        """Librdkafka settings of the job's cluster, with a connector's own on top."""
        settings: dict[str, Any] = {
            "bootstrap.servers": self.config.kafka.bootstrap,
            **self.config.kafka.properties,
            **(overrides or {}),
        }
        return settings

    def connector_kafka(
        self, declared: Mapping[str, str | float | bool], configured: Mapping[str, str]
    ) -> dict[str, str]:
        """The same for one source or sink: its declaration's settings, then the configuration's."""
        as_text = {
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in declared.items()
        }
        return self.kafka({**as_text, **configured})
