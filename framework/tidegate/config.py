"""The configuration. This module holds one class per section and every default value.
`default.toml` documents every key.

Values come from five places. The first place that has a value wins: the command line, the
environment (`TIDEGATE_CHECKPOINT__INTERVAL`), the nearest `tidegate.toml` upwards from the working
folder, the pipeline's class statement, and the defaults. `cli` and tests call `load`. Processes of
a cluster get the effective settings with their submission (`from_dict`). An unknown key is an error
that names the key and its nearest neighbour. Durations carry their unit in the text ("10 s"); in
code they are milliseconds.

The classes are plain dataclasses and check nothing themselves. `config_load` has pydantic check
what a user wrote, by the types and the `Limits` that are declared here. Processes that get their
settings from another one read settings that were checked before (`from_dict`). They do without
pydantic, which takes 11 MB of memory and a tenth of a second to import.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, Self

import msgspec

from tidegate.errors import ConfigError
from tidegate.ids import JOB_NAME
from tidegate.masking import remember

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler
    from pydantic_core import CoreSchema

_DURATION_MS = {"ms": 1, "s": 1_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_SIZE_BYTES = {"KiB": 1 << 10, "MiB": 1 << 20}


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
class Limits:
    """Limits of a number, or the pattern of a text. pydantic checks them under the same names."""

    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    pattern: str | None = None

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Return the schema of the type with these limits. Only pydantic calls this."""
        limits = {name: limit for name, limit in asdict(self).items() if limit is not None}
        return {**handler(source), **limits}


@dataclass(frozen=True, slots=True)
class Units:
    """The units that a setting may be written with. `what` is what they measure."""

    what: str
    factors: tuple[tuple[str, int], ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The units, from the smallest to the largest."""
        return tuple(name for name, _ in self.factors)

    def read(self, value: object) -> int:
        """Return a value in the smallest unit. A number has this unit already, as `Config.to_dict`
        returns it. Raise ValueError for a text without a unit, and for any other value.
        """
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        pattern = rf"(\d+)\s*({'|'.join(self.names)})"
        match = re.fullmatch(pattern, value.strip()) if isinstance(value, str) else None
        if match is None:
            units = ", ".join(self.names)
            raise ValueError(
                f"{value!r} is not a {self.what}; write a whole number and one of {units}"
            )
        return int(match[1]) * dict(self.factors)[match[2]]

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Return the schema of the number, behind `read`. Only pydantic calls this."""
        from pydantic_core import core_schema

        return core_schema.no_info_before_validator_function(self.read, handler(source))


_DURATION = Units("duration", tuple(_DURATION_MS.items()))
_SIZE = Units("size", tuple(_SIZE_BYTES.items()))

DurationMs = Annotated[int, Limits(ge=0), _DURATION]
"""Milliseconds, written with a unit: "10 s"."""
PositiveMs = Annotated[int, Limits(gt=0), _DURATION]
"""Milliseconds, at least 1. A setting has this type if zero would be wrong, for example for a pause
that the code repeats.
"""


RUNS_FOREIGN_CODE: Final = {
    "plugin.library.paths": "librdkafka loads these libraries into the process",
    "ssl.engine.location": "OpenSSL loads this library into the process",
    "ssl.engine.id": "OpenSSL loads the engine of this name into the process",
    "ssl.providers": "OpenSSL loads the providers of these names, or at these paths, as libraries",
    "sasl.kerberos.kinit.cmd": "librdkafka runs this command in a shell",
}
"""librdkafka settings through which a configuration could start code. Each value says how."""

_IN_SHELL_COMMAND: Final = frozenset({"sasl.kerberos.principal", "sasl.kerberos.keytab"})
"""librdkafka settings whose values become part of the command `kinit`, which a shell runs."""
_SHELL_SAFE: Final = re.compile(r"[\w.@/:+=,%-]*", re.ASCII)


def foreign_code(property_name: str, value: object = "") -> str | None:
    """Return how a librdkafka setting starts foreign code, or None if it does not.

    Case, surrounding spaces, any text after a NUL character, and the prefix `topic.` are ignored.
    librdkafka may read the name as a C string and removes the prefix, and this check must not
    depend on how librdkafka compares names.
    """
    name = property_name.split("\0", maxsplit=1)[0].strip().lower()
    while name.startswith("topic."):
        name = name.removeprefix("topic.").strip()
    if name in _IN_SHELL_COMMAND and not _SHELL_SAFE.fullmatch(str(value)):
        return (
            "librdkafka passes the value to a shell, so it may contain only letters, digits and "
            "the characters . _ @ / : + = , % -"
        )
    return RUNS_FOREIGN_CODE.get(name)


def refuse_foreign_code(settings: Iterable[tuple[str, object]], origin: str) -> None:
    """Raise ConfigError if one of these dotted keys and values is a librdkafka setting that starts
    foreign code. `origin` says where the settings are from.
    """
    for key, value in settings:
        section, found, name = key.rpartition(".properties.")
        how = foreign_code(name, value) if found else None
        if how is not None:
            raise ConfigError(
                f"Setting {section}.properties.{name.strip()} in {origin} is not allowed: {how}. "
                "Remove it."
            )


MAX_CODE_SIZE: Final = 48 << 20
"""The upper limit of `job.max_code_size`, in bytes. The archive of the code travels in one control
message, of 64 MiB at most (`drivers/rpc`).
"""


class Section:
    """The base class of all sections. Sections are immutable, and pydantic refuses unknown keys."""

    __slots__ = ()
    __pydantic_config__: ClassVar[Mapping[str, str]] = {"extra": "forbid"}


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSettings(Section):
    """The Kafka cluster that the job reads, writes and commits on."""

    bootstrap_servers: str = "localhost:9092"
    properties: dict[str, str] = field(default_factory=dict)
    """librdkafka settings for every client, such as security settings."""

    def client_settings(self, overrides: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the librdkafka settings of a client. `overrides` precede `properties`."""
        return {"bootstrap.servers": self.bootstrap_servers, **self.properties, **(overrides or {})}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings(Section):
    """The name of a job, its parallelism, and the maximum size of its code. `max_parallelism` is
    fixed for the life of the job's state.
    """

    name: Annotated[str, Limits(pattern=f"^{JOB_NAME}$")] | None = None
    """None means the name in the class statement."""
    parallelism: Annotated[int, Limits(ge=1)] = 1
    max_parallelism: Annotated[int, Limits(ge=1, le=32_768)] = 128
    max_code_size: Annotated[int, Limits(gt=0, le=MAX_CODE_SIZE), _SIZE] = 16 << 20
    watermark_interval: PositiveMs = 200
    """The time between two watermarks of a source. A watermark also precedes each barrier."""
    stop_grace_period: DurationMs = 15_000
    """The time that calls of user code have to return after a stop or a cancel. A storage that does
    not answer ends the wait too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSettings(Section):
    """The times, limits and storage of checkpoints."""

    interval: PositiveMs = 10_000
    interval_during_backlog: DurationMs = 3_000
    """The checkpoint interval while the job works off a backlog, in milliseconds. It has an effect
    only if it is longer than `interval`.
    """
    interval_when_idle: DurationMs = 1_000
    """The checkpoint interval while the job reads and writes no records, in milliseconds. The next
    record ends it at once. It has an effect only if it is longer than `interval`.
    """
    timeout: PositiveMs = 120_000
    min_pause: DurationMs = 0
    tolerable_failed_checkpoints: Annotated[int, Limits(ge=0)] = 2
    num_retained: Annotated[int, Limits(ge=2)] = 2
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


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSettings(Section):
    """The backend and the local folder of keyed state between checkpoints."""

    backend: Literal["rocksdb", "memory"] = "rocksdb"
    local_dir: str = ".tidegate/state"
    """The local folder of keyed state. Files that a failed attempt leaves here help the next
    attempt on the same host, which then fetches less. If the folder is lost, no state is lost.
    """
    cache_entries: Annotated[int, Limits(ge=1_000)] = 200_000


@dataclass(frozen=True, slots=True, kw_only=True)
class JobManagerSettings(Section):
    """The address of the JobManager of a session cluster, and the address that it listens on."""

    host: str = "localhost"
    port: Annotated[int, Limits(ge=1, le=65_535)] = 6123
    bind_host: str | None = None
    """None means `host`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskManagerSettings(Section):
    """The settings of a TaskManager. All except `slots` apply only to a standalone TaskManager."""

    slots: Annotated[int, Limits(ge=1, le=SLOTS_MAX)] = 1
    host: str | None = None
    """None means the local address from which the TaskManager reaches the JobManager."""
    port: Annotated[int, Limits(ge=0, le=65_535)] = 0
    bind_host: str | None = None
    """None means `host`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings(Section):
    """The processes of a cluster, and the timeouts after which a process counts as lost."""

    name: Annotated[str, Limits(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")] = "default"
    """The name of a session cluster. The caller that starts a local cluster gives that cluster its
    name.
    """
    task_managers: Annotated[int, Limits(ge=1, le=256)] = 1
    slot_request_timeout: PositiveMs = 300_000
    heartbeat_interval: PositiveMs = 1_000
    heartbeat_timeout: DurationMs = 15_000

    @property
    def quiet_interval(self) -> int:
        """Return the interval at which an unchanged heartbeat or report is still sent, in
        milliseconds.

        It is three seconds or a fifth of the timeout, whichever is shorter, but at least one
        heartbeat interval. Each message costs both ends 2 to 3 ms of CPU, which is most of the load
        of an idle cluster.
        """
        return max(self.heartbeat_interval, min(3_000, self.heartbeat_timeout // 5))


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartSettings(Section):
    """The restart strategy, which decides whether and when a new attempt follows a failed one."""

    strategy: Literal["exponential_delay", "fixed_delay", "failure_rate", "none"] = (
        "exponential_delay"
    )
    initial_backoff: DurationMs = 100
    max_backoff: DurationMs = 60_000
    backoff_multiplier: Annotated[float, Limits(ge=1.0)] = 2.0
    jitter_factor: Annotated[float, Limits(ge=0.0, le=1.0)] = 0.1
    reset_backoff_threshold: DurationMs = 600_000
    attempts: Annotated[int, Limits(ge=1)] | None = None
    """The number of restarts before the job fails; None means unlimited. With `exponential_delay`,
    the count starts again after an attempt that ran for `reset_backoff_threshold`.
    """
    delay: DurationMs = 1_000
    """The pause before each restart with `fixed_delay` and `failure_rate`, in milliseconds."""
    max_failures_per_interval: Annotated[int, Limits(ge=1)] = 3
    """The limit of `failure_rate`: this number of failures within `failure_rate_interval` fails the
    job.
    """
    failure_rate_interval: DurationMs = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeSettings(Section):
    """The connections between slots."""

    credits: Annotated[int, Limits(ge=2)] = 8
    """Frames in flight per channel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillSettings(Section):
    """The settings of `tidegate backfill`, which processes the history of topics."""

    master: str = "local[*]"
    wave_records: Annotated[int, Limits(gt=0)] = 1_000_000
    wave_span: PositiveMs | None = None
    ship: bool = False
    start_timeout: PositiveMs = 180_000
    """The time that Spark may take to start. A quiet machine needs 4 s, and a busy one once needed
    107 s.
    """
    spark: dict[str, str] = field(default_factory=dict)
    """Settings of Spark, by their names without the first word: `executor.memory`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings(Section):
    """The folder and the level of the processes' logs, and the maximum size of each file."""

    dir: str = ".tidegate/logs"
    level: Literal["debug", "info", "warning", "error"] = "info"
    max_file_size: Annotated[int, Limits(gt=0), _SIZE] = 10 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorSettings(Section):
    """Overrides of one source or sink, by its attribute name."""

    topic: str | None = None
    properties: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(Section):
    """The effective configuration of a process."""

    kafka: KafkaSettings = field(default_factory=KafkaSettings)
    job: JobSettings = field(default_factory=JobSettings)
    checkpoint: CheckpointSettings = field(default_factory=CheckpointSettings)
    state: StateSettings = field(default_factory=StateSettings)
    jobmanager: JobManagerSettings = field(default_factory=JobManagerSettings)
    taskmanager: TaskManagerSettings = field(default_factory=TaskManagerSettings)
    cluster: ClusterSettings = field(default_factory=ClusterSettings)
    restart: RestartSettings = field(default_factory=RestartSettings)
    exchange: ExchangeSettings = field(default_factory=ExchangeSettings)
    backfill: BackfillSettings = field(default_factory=BackfillSettings)
    logs: LogSettings = field(default_factory=LogSettings)
    sources: dict[str, ConnectorSettings] = field(default_factory=dict)
    sinks: dict[str, ConnectorSettings] = field(default_factory=dict)

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
        return asdict(self)

    @classmethod
    def from_dict(cls, settings: dict[str, Any]) -> Self:
        """Return the configuration from the output of `to_dict`, of this version or an earlier one.

        Raise ConfigError for an unknown key, for a value of another type, and for a setting of
        Kafka's clients that starts foreign code. Limits are not checked again. From now on, the
        process masks the secrets in these settings.
        """
        remember(settings)
        refuse_foreign_code(flattened(settings), "the settings of a job")
        named = with_present_names(settings)
        try:
            config = msgspec.convert(named, cls)
        except msgspec.ValidationError as error:
            raise ConfigError(f"The settings of a job cannot be read: {error}.") from error
        unknown = set(_names(named, "")) - set(_names(config.to_dict(), ""))
        if unknown:
            raise ConfigError(
                f"The settings of a job have {', '.join(sorted(unknown))}, which this version of "
                "tidegate does not know. Another version wrote them, probably a later one: run "
                "that version."
            )
        return config


def _names(settings: Mapping[str, Any], prefix: str) -> Iterator[str]:
    """Yield the dotted keys of nested tables, also those of the tables themselves."""
    for name, value in settings.items():
        yield f"{prefix}{name}"
        if isinstance(value, Mapping):
            yield from _names(value, f"{prefix}{name}.")


def flattened(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of nested tables, each with its dotted key."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from flattened(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


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
