"""The configuration: one model per section, every default here, every key documented in
`default.toml`.

Values come, first wins, from the command line, the environment (`TIDEGATE_CHECKPOINT__INTERVAL`),
the nearest `tidegate.toml` upwards from the working folder, the pipeline's class statement, and the
defaults. `cli` and tests call `load`; processes of a cluster get the effective settings with their
submission (`from_dict`). Unknown keys are errors that name the key and its nearest neighbour.
Durations carry their unit in the text ("10 s"); in code they are milliseconds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
)

from tidegate.ids import JOB_NAME
from tidegate.masking import remember

_DURATION_MS = {"ms": 1, "s": 1_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(rf"(\d+)\s*({'|'.join(_DURATION_MS)})")
_SIZE_BYTES = {"KiB": 1 << 10, "MiB": 1 << 20}
_SIZE = re.compile(rf"(\d+)\s*({'|'.join(_SIZE_BYTES)})")


def _to_ms(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value  # already in milliseconds: the form in which settings travel
    match = _DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        units = ", ".join(_DURATION_MS)
        raise ValueError(f"{value!r} is not a duration; write a whole number and one of {units}")
    return int(match[1]) * _DURATION_MS[match[2]]


def _to_bytes(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value  # already in bytes: the form in which settings travel
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        units = ", ".join(_SIZE_BYTES)
        raise ValueError(f"{value!r} is not a size; write a whole number and one of {units}")
    return int(match[1]) * _SIZE_BYTES[match[2]]


RENAMED: Final = {
    "checkpoint.tolerable_failures": "checkpoint.tolerable_failed_checkpoints",
    "checkpoint.retained": "checkpoint.num_retained",
}
"""Keys of earlier versions, each with its present name. A submission that an earlier version stored
has them, and is read as if it had the present ones. A user who writes one is told the new name."""

SLOTS_MAX: Final = 256
"""Of one TaskManager."""


@dataclass(frozen=True, slots=True)
class Units:
    """The units that a setting may be written with."""

    names: tuple[str, ...]


DurationMs = Annotated[int, BeforeValidator(_to_ms), Field(ge=0), Units(tuple(_DURATION_MS))]
"""Milliseconds, written with a unit: "10 s"."""
PositiveMs = Annotated[DurationMs, Field(gt=0)]
"""The same for what may not be nothing: to wait that long again and again, say."""


RUNS_FOREIGN_CODE: Final = {
    "plugin.library.paths": "librdkafka loads these libraries into the process",
    "ssl.engine.location": "OpenSSL loads this library into the process",
    "sasl.kerberos.kinit.cmd": "librdkafka runs this command in a shell",
}
"""librdkafka settings by which a configuration could start code, with how."""


def foreign_code(property_name: str) -> str | None:
    """How a librdkafka setting starts foreign code, or None if it does not.

    Case, spaces and what follows a NUL make no other setting of it: librdkafka may read the name
    as a C string, and this must not depend on how it compares names.
    """
    return RUNS_FOREIGN_CODE.get(property_name.split("\0", maxsplit=1)[0].strip().lower())


SizeBytes = Annotated[int, BeforeValidator(_to_bytes), Units(tuple(_SIZE_BYTES))]
"""Bytes, written with a unit: "16 MiB"."""
MAX_CODE_SIZE: Final = 48 << 20
"""The archive travels in one control message, of 64 MiB at most (`drivers/rpc`)."""


class Section(BaseModel):
    """Base of all sections: frozen, and strict about names."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class KafkaSettings(Section):
    """The Kafka cluster that the job reads, writes and commits on."""

    bootstrap: str = "localhost:9092"
    properties: dict[str, str] = Field(default_factory=dict)
    """librdkafka settings for every client: security and the like."""


class JobSettings(Section):
    """What a job is called, how wide it runs, and how much code it ships; max_parallelism is fixed
    for the life of its state.
    """

    name: str | None = Field(default=None, pattern=f"^{JOB_NAME}$")
    """None is the name of the class statement."""
    parallelism: int = Field(default=1, ge=1)
    max_parallelism: int = Field(default=128, ge=1, le=32_768)
    max_code_size: Annotated[SizeBytes, Field(gt=0, le=MAX_CODE_SIZE)] = 16 << 20


class CheckpointSettings(Section):
    """When checkpoints are taken, how long they may take, where they are kept."""

    interval: PositiveMs = 10_000
    interval_during_backlog: DurationMs = 3_000
    """Has no effect where `interval` is as long."""
    timeout: PositiveMs = 120_000
    min_pause: DurationMs = 0
    tolerable_failed_checkpoints: int = Field(default=2, ge=0)
    num_retained: int = Field(default=2, ge=2)
    mode: Literal["exactly_once", "at_least_once"] = "exactly_once"
    storage: str = ".tidegate/checkpoints"
    allow_network_filesystem: bool = False
    tolerated_outage: DurationMs = 180_000

    @property
    def backlog_window(self) -> int:
        """`interval_during_backlog` where it makes a difference, else 0; milliseconds."""
        during = self.interval_during_backlog
        return during if during > self.interval else 0


class StateSettings(Section):
    """Where keyed state lives between checkpoints."""

    backend: Literal["rocksdb", "memory"] = "rocksdb"
    directory: str = ".tidegate/state"
    """What an attempt that failed leaves there serves the next one on the host: it then fetches
    less. Nothing is lost with it.
    """
    cache_entries: int = Field(default=200_000, ge=1_000)


class JobManagerSettings(Section):
    """Where the JobManager of a standing cluster is found, and what it listens on."""

    host: str = "localhost"
    port: int = Field(default=6123, ge=1, le=65_535)
    bind_host: str | None = None
    """None is `host` itself."""


class TaskManagerSettings(Section):
    """A TaskManager of this configuration; all but `slots` are for standing ones."""

    slots: int = Field(default=1, ge=1, le=SLOTS_MAX)
    host: str | None = None
    """None is the address from which it reaches the JobManager."""
    port: int = Field(default=0, ge=0, le=65_535)
    bind_host: str | None = None
    """None is `host` itself."""


class ClusterSettings(Section):
    """The processes of a cluster and when one is given up."""

    name: str = Field(default="default", pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")
    """Of a standing cluster; a local one is named by whoever starts it."""
    task_managers: int = Field(default=1, ge=1, le=256)
    slot_request_timeout: PositiveMs = 300_000
    heartbeat_interval: PositiveMs = 1_000
    heartbeat_timeout: DurationMs = Field(default=15_000, validate_default=True)

    @field_validator("heartbeat_timeout")
    @classmethod
    def _leaves_time_for_two(cls, timeout: int, others: ValidationInfo) -> int:
        interval = others.data.get("heartbeat_interval", 0)  # not there where it is wrong itself
        if timeout < 2 * interval:
            raise ValueError(
                f"between two heartbeats, which are {interval} ms apart, a process that is well "
                "would be given up; make it at least twice cluster.heartbeat_interval"
            )
        return timeout

    @property
    def quiet_interval(self) -> int:
        """Milliseconds after which a heartbeat or a report that says nothing new is sent all the
        same: three seconds, or a fifth of the timeout where that is less, and never less than one
        interval. Each costs both ends 2 to 3 ms of CPU, which is most of what an idle cluster does.
        """
        return max(self.heartbeat_interval, min(3_000, self.heartbeat_timeout // 5))


class RestartSettings(Section):
    """When a failed attempt is followed by another."""

    strategy: Literal["exponential_delay", "fixed_delay", "failure_rate", "none"] = (
        "exponential_delay"
    )
    initial_delay: DurationMs = 100
    max_delay: DurationMs = 60_000
    multiplier: float = Field(default=2.0, ge=1.0)
    jitter: float = Field(default=0.1, ge=0.0, le=1.0)
    reset_after: DurationMs = 600_000
    attempts: int | None = Field(default=None, ge=1)
    """Restarts before the job fails, with `exponential_delay` since the last attempt that ran for
    `reset_after`; None is without end.
    """
    delay: DurationMs = 1_000
    """Between restarts of `fixed_delay` and `failure_rate`."""
    failures: int = Field(default=3, ge=1)
    """Of `failure_rate`: so many within `failure_interval` fail the job."""
    failure_interval: DurationMs = 60_000


class ExchangeSettings(Section):
    """The way between slots."""

    credits: int = Field(default=8, ge=2)
    """Frames in flight per channel."""


class BackfillSettings(Section):
    """How `tidegate backfill` works off history."""

    master: str = "local[*]"
    wave_records: int = Field(default=1_000_000, gt=0)
    wave_span: PositiveMs | None = None
    ship: bool = False


class LogSettings(Section):
    """Where processes write their logs."""

    directory: str = ".tidegate/logs"
    level: Literal["debug", "info", "warning", "error"] = "info"


class ConnectorSettings(Section):
    """Overrides of one source or sink, by its attribute name."""

    topic: str | None = None
    properties: dict[str, str] = Field(default_factory=dict)


class Config(Section):
    """The effective configuration of a process."""

    kafka: KafkaSettings = KafkaSettings()
    job: JobSettings = JobSettings()
    checkpoint: CheckpointSettings = CheckpointSettings()
    state: StateSettings = StateSettings()
    jobmanager: JobManagerSettings = JobManagerSettings()
    taskmanager: TaskManagerSettings = TaskManagerSettings()
    cluster: ClusterSettings = ClusterSettings()
    restart: RestartSettings = RestartSettings()
    exchange: ExchangeSettings = ExchangeSettings()
    backfill: BackfillSettings = BackfillSettings()
    logs: LogSettings = LogSettings()
    sources: dict[str, ConnectorSettings] = Field(default_factory=dict)
    sinks: dict[str, ConnectorSettings] = Field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, durations in milliseconds: the form that travels with a submission."""
        return self.model_dump(mode="json")

    @classmethod
    def from_dict(cls, settings: dict[str, Any]) -> Self:
        """The inverse of `to_dict`, also of that of an earlier version.

        The process masks the secrets in it from now on.
        """
        remember(settings)
        return cls.model_validate(with_present_names(settings))


def with_present_names(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as `Config.to_dict` gives them, with the present name of each renamed key."""
    named = {
        section: dict(values) if isinstance(values, Mapping) else values
        for section, values in settings.items()
    }
    for before, now in RENAMED.items():
        section, _, key = before.partition(".")
        values = named.get(section)
        if isinstance(values, dict) and key in values:
            values[now.partition(".")[2]] = values.pop(key)
    return named
