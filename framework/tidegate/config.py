"""The configuration. This module holds one model per section and every default value.
`default.toml` documents every key.

Values come from five places. The first place that has a value wins: the command line, the
environment (`TIDEGATE_CHECKPOINT__INTERVAL`), the nearest `tidegate.toml` upwards from the working
folder, the pipeline's class statement, and the defaults. `cli` and tests call `load`. Processes of
a cluster get the effective settings with their submission (`from_dict`). An unknown key is an error
that names the key and its nearest neighbour. Durations carry their unit in the text ("10 s"); in
code they are milliseconds.
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
        return value  # already in milliseconds, as `Config.to_dict` returns it
    match = _DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        units = ", ".join(_DURATION_MS)
        raise ValueError(f"{value!r} is not a duration; write a whole number and one of {units}")
    return int(match[1]) * _DURATION_MS[match[2]]


def _to_bytes(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value  # already in bytes, as `Config.to_dict` returns it
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        units = ", ".join(_SIZE_BYTES)
        raise ValueError(f"{value!r} is not a size; write a whole number and one of {units}")
    return int(match[1]) * _SIZE_BYTES[match[2]]


def with_unit(value: int, units: tuple[str, ...]) -> str:
    """Return a number of milliseconds or bytes with the largest of `units` that divides it."""
    factors = {**_DURATION_MS, **_SIZE_BYTES}
    unit = max((each for each in units if value % factors[each] == 0), key=factors.__getitem__)
    return f"{value // factors[unit]} {unit}" if value else f"0 {units[0]}"


RENAMED: Final = {
    "kafka.bootstrap": "kafka.bootstrap_servers",
    "checkpoint.storage": "checkpoint.dir",
    "state.directory": "state.local_dir",
    "logs.directory": "logs.dir",
    "restart.initial_delay": "restart.initial_backoff",
    "restart.max_delay": "restart.max_backoff",
    "restart.multiplier": "restart.backoff_multiplier",
    "restart.jitter": "restart.jitter_factor",
    "restart.reset_after": "restart.reset_backoff_threshold",
    "restart.failures": "restart.max_failures_per_interval",
    "restart.failure_interval": "restart.failure_rate_interval",
    "checkpoint.tolerable_failures": "checkpoint.tolerable_failed_checkpoints",
    "checkpoint.retained": "checkpoint.num_retained",
}
"""Keys of earlier versions, each with its present name. A submission that an earlier version stored
has the old keys. It is read as if it had the present ones. A user who writes an old key gets an
error with the new name.
"""

NO_VALUE: Final = {
    "jobmanager.bind_host": "auto",
    "taskmanager.host": "auto",
    "taskmanager.bind_host": "auto",
    "restart.attempts": "unlimited",
}
"""The text that stands for None in these optional settings. In all others it is "none"."""

SLOTS_MAX: Final = 256
"""The maximum number of slots of one TaskManager."""


@dataclass(frozen=True, slots=True)
class Units:
    """The units that a setting may be written with."""

    names: tuple[str, ...]


DurationMs = Annotated[int, BeforeValidator(_to_ms), Field(ge=0), Units(tuple(_DURATION_MS))]
"""Milliseconds, written with a unit: "10 s"."""
PositiveMs = Annotated[DurationMs, Field(gt=0)]
"""Milliseconds, at least 1. A setting has this type if zero would be wrong, for example for a pause
that the code repeats.
"""


RUNS_FOREIGN_CODE: Final = {
    "plugin.library.paths": "librdkafka loads these libraries into the process",
    "ssl.engine.location": "OpenSSL loads this library into the process",
    "sasl.kerberos.kinit.cmd": "librdkafka runs this command in a shell",
}
"""librdkafka settings through which a configuration could start code. Each value says how."""


def foreign_code(property_name: str) -> str | None:
    """Return how a librdkafka setting starts foreign code, or None if it does not.

    Case, surrounding spaces and any text after a NUL character are ignored. librdkafka may read the
    name as a C string, and this check must not depend on how librdkafka compares names.
    """
    return RUNS_FOREIGN_CODE.get(property_name.split("\0", maxsplit=1)[0].strip().lower())


SizeBytes = Annotated[int, BeforeValidator(_to_bytes), Units(tuple(_SIZE_BYTES))]
"""Bytes, written with a unit: "16 MiB"."""
MAX_CODE_SIZE: Final = 48 << 20
"""The upper limit of `job.max_code_size`, in bytes. The archive of the code travels in one control
message, of 64 MiB at most (`drivers/rpc`).
"""


class Section(BaseModel):
    """The base class of all sections. Sections are immutable and refuse unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class KafkaSettings(Section):
    """The Kafka cluster that the job reads, writes and commits on."""

    bootstrap_servers: str = "localhost:9092"
    properties: dict[str, str] = Field(default_factory=dict)
    """librdkafka settings for every client, such as security settings."""

    def client_settings(self, overrides: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the librdkafka settings of a client. `overrides` precede `properties`."""
        return {"bootstrap.servers": self.bootstrap_servers, **self.properties, **(overrides or {})}


class JobSettings(Section):
    """The name of a job, its parallelism, and the maximum size of its code. `max_parallelism` is
    fixed for the life of the job's state.
    """

    name: str | None = Field(default=None, pattern=f"^{JOB_NAME}$")
    """None means the name in the class statement."""
    parallelism: int = Field(default=1, ge=1)
    max_parallelism: int = Field(default=128, ge=1, le=32_768)
    max_code_size: Annotated[SizeBytes, Field(gt=0, le=MAX_CODE_SIZE)] = 16 << 20
    watermark_interval: PositiveMs = 200
    """The time between two watermarks of a source. A watermark also precedes each barrier."""
    stop_grace_period: DurationMs = 15_000
    """The time that calls of user code have to return after a stop or a cancel."""


class CheckpointSettings(Section):
    """The times, limits and storage of checkpoints."""

    interval: PositiveMs = 10_000
    interval_during_backlog: DurationMs = 3_000
    """The checkpoint interval while the job works off a backlog, in milliseconds. It has an effect
    only if it is longer than `interval`.
    """
    timeout: PositiveMs = 120_000
    min_pause: DurationMs = 0
    tolerable_failed_checkpoints: int = Field(default=2, ge=0)
    num_retained: int = Field(default=2, ge=2)
    mode: Literal["exactly_once", "at_least_once"] = "exactly_once"
    dir: str = ".tidegate/checkpoints"
    allow_network_filesystem: bool = False
    tolerated_outage: DurationMs = 180_000

    @property
    def backlog_window(self) -> int:
        """Return `interval_during_backlog` if it is longer than `interval`, else 0. The unit is
        milliseconds.
        """
        during = self.interval_during_backlog
        return during if during > self.interval else 0


class StateSettings(Section):
    """The backend and the local folder of keyed state between checkpoints."""

    backend: Literal["rocksdb", "memory"] = "rocksdb"
    local_dir: str = ".tidegate/state"
    """The local folder of keyed state. Files that a failed attempt leaves here help the next
    attempt on the same host, which then fetches less. If the folder is lost, no state is lost.
    """
    cache_entries: int = Field(default=200_000, ge=1_000)


class JobManagerSettings(Section):
    """The address of the JobManager of a session cluster, and the address that it listens on."""

    host: str = "localhost"
    port: int = Field(default=6123, ge=1, le=65_535)
    bind_host: str | None = None
    """None means `host`."""


class TaskManagerSettings(Section):
    """The settings of a TaskManager. All except `slots` apply only to a standalone TaskManager."""

    slots: int = Field(default=1, ge=1, le=SLOTS_MAX)
    host: str | None = None
    """None means the local address from which the TaskManager reaches the JobManager."""
    port: int = Field(default=0, ge=0, le=65_535)
    bind_host: str | None = None
    """None means `host`."""


class ClusterSettings(Section):
    """The processes of a cluster, and the timeouts after which a process counts as lost."""

    name: str = Field(default="default", pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")
    """The name of a session cluster. The caller that starts a local cluster gives that cluster its
    name.
    """
    task_managers: int = Field(default=1, ge=1, le=256)
    slot_request_timeout: PositiveMs = 300_000
    heartbeat_interval: PositiveMs = 1_000
    heartbeat_timeout: DurationMs = Field(default=15_000, validate_default=True)

    @field_validator("heartbeat_timeout")
    @classmethod
    def _leaves_time_for_two(cls, timeout: int, others: ValidationInfo) -> int:
        interval = others.data.get("heartbeat_interval", 0)  # absent if it is invalid itself
        if timeout < 2 * interval:
            raise ValueError(
                f"heartbeats are {interval} ms apart, so a healthy process could count as lost; "
                "make the timeout at least twice cluster.heartbeat_interval"
            )
        return timeout

    @property
    def quiet_interval(self) -> int:
        """Return the interval at which an unchanged heartbeat or report is still sent, in
        milliseconds.

        It is three seconds or a fifth of the timeout, whichever is shorter, but at least one
        heartbeat interval. Each message costs both ends 2 to 3 ms of CPU, which is most of the load
        of an idle cluster.
        """
        return max(self.heartbeat_interval, min(3_000, self.heartbeat_timeout // 5))


class RestartSettings(Section):
    """The restart strategy, which decides whether and when a new attempt follows a failed one."""

    strategy: Literal["exponential_delay", "fixed_delay", "failure_rate", "none"] = (
        "exponential_delay"
    )
    initial_backoff: DurationMs = 100
    max_backoff: DurationMs = 60_000
    backoff_multiplier: float = Field(default=2.0, ge=1.0)
    jitter_factor: float = Field(default=0.1, ge=0.0, le=1.0)
    reset_backoff_threshold: DurationMs = 600_000
    attempts: int | None = Field(default=None, ge=1)
    """The number of restarts before the job fails; None means unlimited. With `exponential_delay`,
    the count starts again after an attempt that ran for `reset_backoff_threshold`.
    """
    delay: DurationMs = 1_000
    """The pause before each restart with `fixed_delay` and `failure_rate`, in milliseconds."""
    max_failures_per_interval: int = Field(default=3, ge=1)
    """The limit of `failure_rate`: this number of failures within `failure_rate_interval` fails the
    job.
    """
    failure_rate_interval: DurationMs = 60_000


class ExchangeSettings(Section):
    """The connections between slots."""

    credits: int = Field(default=8, ge=2)
    """Frames in flight per channel."""


class BackfillSettings(Section):
    """The settings of `tidegate backfill`, which processes the history of topics."""

    master: str = "local[*]"
    wave_records: int = Field(default=1_000_000, gt=0)
    wave_span: PositiveMs | None = None
    ship: bool = False


class LogSettings(Section):
    """The folder and the level of the processes' logs, and the maximum size of each file."""

    dir: str = ".tidegate/logs"
    level: Literal["debug", "info", "warning", "error"] = "info"
    max_file_size: Annotated[SizeBytes, Field(gt=0)] = 10 << 20


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

    def source(self, uid: str) -> ConnectorSettings:
        """Return the settings of one source. Without settings, return the defaults."""
        return self.sources.get(uid, ConnectorSettings())

    def sink(self, uid: str) -> ConnectorSettings:
        """Return the settings of one sink. Without settings, return the defaults."""
        return self.sinks.get(uid, ConnectorSettings())

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, with durations in milliseconds. Settings travel with a submission in
        this form.
        """
        return self.model_dump(mode="json")

    @classmethod
    def from_dict(cls, settings: dict[str, Any]) -> Self:
        """Return the configuration from the output of `to_dict`, of this version or an earlier one.

        From now on, the process masks the secrets in these settings.
        """
        remember(settings)
        return cls.model_validate(with_present_names(settings))


def with_present_names(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings that `Config.to_dict` gave, with the present name of each renamed key."""
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
