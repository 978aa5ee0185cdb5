"""The pipeline class, its checks, and the build of its graph.

When Python creates the class, it checks the name, each declaration alone, and that `define`
exists. So these errors appear on import and in an editor's test run. `build` checks everything
that needs the graph. Neither does I/O, except that schema files are read.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import re
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar, cast, overload

import msgspec

from tidegate.api.connectors.source import Source
from tidegate.api.declarations.connector import Connector, declared_in
from tidegate.api.declarations.location import FRAMEWORK_PATHS, user_location
from tidegate.api.records.record_fields import MISSING, type_name
from tidegate.api.run_result import RunResult
from tidegate.api.steps.streams import Stream
from tidegate.api.time.times import Duration, to_ms
from tidegate.errors import PipelineError, passes_through
from tidegate.graph.key_groups import DEFAULT_MAX_PARALLELISM, MAX_PARALLELISM_LIMIT
from tidegate.graph.stream_graph import Edge, StreamGraph
from tidegate.ids import JOB_NAME
from tidegate.masking import MASK, remember_value
from tidegate.message_text import clause
from tidegate.user_exceptions import described, process_ends, text_of

F = TypeVar("F", bound=Callable[..., None])


def with_checked_keywords(init_subclass: F) -> F:
    """Wrap `__init_subclass__`: a wrong keyword raises PipelineError at the class statement.

    Python reports a missing or unknown keyword as a TypeError of `__init_subclass__`, which has no
    remedy. The check here raises a PipelineError that names the class, the file, the line and the
    remedy. It does not look at values: `Pipeline.__init_subclass__` does. Type checkers still see
    the keywords, because the checked function keeps its type.
    """
    known = [
        name
        for name, each in inspect.signature(init_subclass).parameters.items()
        if each.kind is inspect.Parameter.KEYWORD_ONLY
    ]

    @functools.wraps(init_subclass)
    def checked(cls: type, **given: Any) -> None:
        for unknown in sorted(given.keys() - known):
            near = difflib.get_close_matches(unknown, known, n=1)
            hint = f"Did you mean {near[0]}=? " if near else ""
            raise PipelineError(
                f"{user_location()}: Pipeline class {cls.__name__} has no option {unknown}=. "
                f"{hint}The options are {', '.join(f'{each}=' for each in known)}."
            )
        if "name" not in given:
            base = cls.__mro__[1].__name__
            raise PipelineError(
                f"{user_location()}: Pipeline class {cls.__name__} has no name. Write "
                f'class {cls.__name__}({base}, name="{_job_name(cls.__name__)}"). A base class '
                "that is not run itself has name=None."
            )
        init_subclass(cls, **given)

    return cast("F", checked)


def _job_name(class_name: str) -> str:
    """Return a name for the job of a class: `order-totals` for `OrderTotals`."""
    words = "".join(f"-{each.lower()}" if each.isupper() else each for each in class_name)
    name = "-".join(filter(None, words.replace("_", "-").split("-")))
    return name if re.fullmatch(JOB_NAME, name) else "totals"


V = TypeVar("V")
S = TypeVar("S")
_RUNNER: list[Callable[..., RunResult]] = []  # empty until `run_pipelines_with` sets one
_CONNECTOR_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")


class Param(Generic[V]):
    """A typed parameter of a pipeline.

    Example: `minimum = Param(Decimal, default=Decimal(0))`, set by `--set minimum=5`. Without a
    default it is required. `check` says whether a value is allowed; `help` is shown if the value is
    missing or refused. The value of a `secret=True` parameter is masked in errors and logs. Give it
    as `TIDEGATE_PARAMS__NAME` in the environment, because other users of the machine can read a
    command line.

    The build of the pipeline raises PipelineError if the value is missing, has another type, or is
    refused.
    """

    def __init__(
        self,
        of: type[V],
        *,
        default: V = MISSING,
        help: str = "",  # noqa: A002 - the word that users of argument parsers expect
        check: Callable[[V], bool] | None = None,
        secret: bool = False,
    ) -> None:
        self.value_type, self.default, self.help, self.check = of, default, help, check
        self.secret = secret
        if default is not MISSING and not isinstance(default, of):
            raise PipelineError(
                f"{user_location()}: default={self._shown(default)} is not of type {type_name(of)}."
            )
        self.name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = self.name or name

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type) -> V: ...
    def __get__(self, instance: object | None, owner: type) -> Self | V:
        if instance is None:
            return self
        raise PipelineError(
            f"Parameter {self.name!r} of {type(instance).__name__} has no value; give it one: "
            f"{type(instance).__name__}({self.name}=...)."
        )

    def to_text(self, value: object) -> str:
        """Return the text of a value, as `--set` takes it. `parse` makes the same value of it.

        PipelineError if the value is not allowed, or if no text gives it.
        """
        given = self.parse(value)
        plain = value if isinstance(value, str) else msgspec.to_builtins(given)
        text = plain if isinstance(plain, str) else msgspec.json.encode(plain).decode()
        if self.parse(text) != given:
            raise PipelineError(
                f"Parameter {self.name!r}: {self._shown(value)} cannot be given to the processes "
                "of a job, which get parameters as text. Use a number, a text, a date or an enum."
            )
        return text

    def parse(self, raw: object) -> V:
        """Return the value of the type, from text or from such a value.

        Text is converted, because a command line has no types. PipelineError if the value cannot be
        converted or `check` refuses it.
        """
        if self.secret:
            remember_value(str(raw))
        try:
            value = msgspec.convert(raw, self.value_type, strict=False)
        except msgspec.ValidationError as error:
            why = "not of its type" if self.secret else str(error)  # msgspec may quote the value
            raise PipelineError(
                f"Parameter {self.name!r}: {why}; given was {self._shown(raw)}. Give it a value of "
                f"type {type_name(self.value_type)}."
            ) from None
        if self.check is not None and not self._is_allowed(self.check, value):
            raise PipelineError(
                f"Parameter {self.name!r}: {self._shown(value)} is not allowed{self.meaning}."
            )
        return value

    def _is_allowed(self, check: Callable[[V], bool], value: V) -> bool:
        try:
            return check(value)
        except process_ends():
            raise
        except BaseException as error:
            raise PipelineError(
                f"{_raised_at(error)}: check= of parameter {self.name!r} raised "
                f"{clause(described(error))}, for the value {self._shown(value)}."
            ) from error

    @property
    def meaning(self) -> str:
        """The help in brackets, for the end of a sentence; empty without help."""
        return f" ({clause(self.help)})" if self.help else ""

    def _shown(self, value: object) -> str:
        return MASK if self.secret else repr(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassSettings:
    """Settings of the job from the class statement; None leaves a setting to the configuration."""

    parallelism: int | None = None
    max_parallelism: int | None = None
    checkpoint_interval_ms: int | None = None


class Pipeline:
    """The base class of all pipelines: `class OrderTotals(Pipeline, name="order-totals")`.

    A shared base class passes `name=None` and cannot be run. The other keywords are settings of the
    job: `parallelism` (subtasks of each step), `max_parallelism` (number of key groups, fixed for
    the lifetime of the state) and `checkpoint_interval` ("10 s" or a timedelta). The command line,
    the environment and `tidegate.toml` have precedence over them.

    The class statement raises PipelineError if a keyword or a declaration is not allowed.
    """

    pipeline_name: ClassVar[str | None] = None
    settings: ClassVar[ClassSettings] = ClassSettings()
    connectors: ClassVar[dict[str, Connector]] = {}
    params: ClassVar[dict[str, Param[Any]]] = {}
    graph: StreamGraph
    _given: Mapping[str, object]

    @with_checked_keywords
    def __init_subclass__(
        cls,
        *,
        name: str | None,
        parallelism: int | None = None,
        max_parallelism: int | None = None,
        checkpoint_interval: Duration | None = None,
    ) -> None:
        cls.pipeline_name = name
        if name is not None and re.fullmatch(JOB_NAME, name) is None:
            raise PipelineError(
                f"{cls.__name__}: name={name!r} must be lower-case letters, digits and hyphens, 63 "
                "at most: it is part of transactional ids."
            )
        cls.settings = ClassSettings(
            parallelism=parallelism,
            max_parallelism=max_parallelism,
            checkpoint_interval_ms=(
                None
                if checkpoint_interval is None
                else to_ms(checkpoint_interval, f"{cls.__name__}: checkpoint_interval")
            ),
        )
        _check_parallelism(cls.__name__, parallelism or 1, max_parallelism)
        members = {key: v for base in reversed(cls.__mro__) for key, v in vars(base).items()}
        cls.connectors = {key: v for key, v in members.items() if isinstance(v, Connector)}
        cls.params = {key: v for key, v in members.items() if isinstance(v, Param)}
        for key in (*cls.connectors, *cls.params):
            if key in vars(Pipeline) or key in Pipeline.__annotations__:
                raise PipelineError(
                    f"{cls.__name__}.{key}: the name is used by Pipeline itself; choose another."
                )
        for base in cls.__mro__:
            _check_dropped(base)
        for key, connector in cls.connectors.items():
            _check_connector(cls.__name__, key, connector)
        if name is not None and cls.define is Pipeline.define:
            raise PipelineError(f"{cls.__name__} has no define(); it says how records flow.")

    def __init__(self, params: Mapping[str, object] | None = None, /, **values: object) -> None:
        """Give parameters their values, as a mapping or as keywords: `OrderTotals(minimum=5)`.

        PipelineError for an unknown parameter or a wrong value. A missing one is refused when the
        graph is built, because a run may find it in the environment.
        """
        self._given = {**(params or {}), **values}
        params = self._given
        if self.pipeline_name is None:
            raise PipelineError(f"{type(self).__name__} is a base (name=None) and cannot be run.")
        unknown = params.keys() - self.params.keys()
        if unknown:
            given = min(unknown)
            near = difflib.get_close_matches(given, self.params, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            has = f"It has: {', '.join(sorted(self.params))}." if self.params else "It has none."
            raise PipelineError(f"{type(self).__name__} has no parameter {given!r}.{hint} {has}")
        self.graph = StreamGraph(self.pipeline_name)
        for key, param in self.params.items():
            raw = params.get(key, param.default)
            if raw is not MISSING:
                self.__dict__[key] = param.parse(raw)

    def _stream_of(self, source: Source[S]) -> Stream[S]:
        """Return the stream that a source starts. Its first use adds the source to the graph."""
        before = self.graph.nodes.get(source.name)
        if before is None or before.declaration is not source:
            source.connect(self.graph)  # refuses a second source of the same name
        of = source.record_type()
        return Stream(self.graph, (Edge(node=source.name, record_type=of),), of)

    def define(self) -> None:
        """Declare the graph.

        It must be deterministic and do no I/O, because every process of a job calls it and must get
        the same graph.
        """
        raise NotImplementedError

    def run(
        self,
        *,
        kafka: str | None = None,
        bounded: bool = False,
        drain: bool | None = None,
        parallelism: int | None = None,
        name: str | None = None,
        checkpoint_interval: Duration | None = None,
        settings: Mapping[str, object] | None = None,
        restore: str = "latest",
        accept_data_loss: bool = False,
        take_over: bool = False,
        restore_to_other_cluster: bool = False,
        quiet: bool = False,
    ) -> RunResult:
        """Run the pipeline on this machine until it ends, as `tidegate run` does.

        The job continues from its last checkpoint, if it has one. Ctrl-C (in a notebook: interrupt
        the kernel) stops it with a final checkpoint, and a second Ctrl-C raises KeyboardInterrupt
        at once; the next run recovers. In a script, call this below `if __name__ == "__main__":`,
        because every process of the job imports the script.

        Args:
            kafka: Brokers, `HOST:PORT,...`; else `kafka.bootstrap_servers` of the settings.
            bounded: Read up to the present end offsets, then stop.
            drain: At the end of a bounded run, fire all timers and windows. None: say so first.
            parallelism: Subtasks of each step.
            name: The job's name, instead of that of the class.
            checkpoint_interval: Time between checkpoints, `"1 s"` or a timedelta.
            settings: Other settings by their dotted key, as in `tidegate.toml`.
            restore: `latest`, `none` (start without state), or the id of a checkpoint.
            accept_data_loss: Continue after a loss of output that the job has reported.
            take_over: Use a job name that another checkpoint storage has used.
            restore_to_other_cluster: Restore on a mirror of the Kafka cluster.
            quiet: Print nothing about the progress.

        Returns:
            How the run ended, and its counts.

        Raises:
            TidegateError: PipelineError, ConfigError or RefusedError if nothing was started;
                otherwise the error that has ended the job.
            KeyboardInterrupt: At the second Ctrl-C.
        """
        if not _RUNNER:
            raise PipelineError("run() has no runner. Write `from tidegate import Pipeline`.")
        return _RUNNER[0](
            type(self),
            {key: self.params[key].to_text(value) for key, value in self._given.items()},
            {
                "kafka.bootstrap_servers": kafka,
                "job.parallelism": parallelism,
                "job.name": name,
                "checkpoint.interval": (
                    None
                    if checkpoint_interval is None
                    else f"{to_ms(checkpoint_interval, 'checkpoint_interval')} ms"
                ),
                **(settings or {}),
            },
            quiet=quiet,
            bounded=bounded,
            drain=drain,
            restore=restore,
            accept_data_loss=accept_data_loss,
            take_over=take_over,
            restore_to_other_cluster=restore_to_other_cluster,
        )


def run_pipelines_with(runner: Callable[..., RunResult]) -> None:
    """Set what `Pipeline.run` calls: `run_pipeline` of `cli/scripts/script_run.py`, which is above
    this package. The package `tidegate` sets it when a user's code imports Pipeline from there.
    """
    _RUNNER[:] = [runner]


def build(pipeline: type[Pipeline], params: Mapping[str, object] | None = None) -> StreamGraph:
    """Build and check the graph of a pipeline. A submit and every worker do this first.

    PipelineError, with the user's file and line, for any mistake in the pipeline, and for an
    exception that the user's `define` raises.
    """
    instance = pipeline(params or {})
    for key, param in pipeline.params.items():
        if key not in instance.__dict__:
            how = f"--set {key}=..."
            if param.secret:  # other users of the machine can read a command line
                how = f"set TIDEGATE_PARAMS__{key.upper()} in the environment"
            raise PipelineError(
                f"Parameter {key!r} of {pipeline.__name__} is required: {how}{param.meaning}."
            )
    try:
        instance.define()
    except passes_through():
        raise
    except BaseException as error:
        raise PipelineError(
            f"{_raised_at(error)}: {pipeline.__name__}.define() raised "
            f"{clause(described(error))}{_remedy(error) or '.'}"
        ) from error
    for name, connector in pipeline.connectors.items():
        if name not in instance.graph.nodes:
            raise PipelineError(
                f"{connector.location}: {pipeline.__name__}.{name} is declared and not used in "
                "define(); use it or remove it."
            )
    for node in instance.graph.nodes.values():
        if isinstance(node.declaration, Connector):
            _check_own(pipeline, node.declaration)
    instance.graph.check()
    return instance.graph


def _check_own(pipeline: type[Pipeline], used: Connector) -> None:
    """Refuse a source or a sink that `define` takes from another class than the pipeline. It would
    take the place of the pipeline's own, with its name and its settings.
    """
    own = pipeline.connectors.get(used.name)
    if own is used or _CONNECTOR_NAME.fullmatch(used.name) is None:
        return  # a name with hyphens is that of a sink for dead letters
    name = f"{pipeline.__name__}.{used.name}"
    if own is None:
        raise PipelineError(
            f"{used.location}: define() uses the declaration for {used.target}, which is not an "
            f"attribute of {pipeline.__name__}. Declare it there, as {name}, and use "
            f"self.{used.name}."
        )
    raise PipelineError(
        f"{used.location}: define() uses the declaration for {used.target}, which {name} at "
        f"{own.location} overrides. Use self.{used.name}."
    )


def _raised_at(error: BaseException) -> str:
    """Return file and line of the innermost frame of an exception that is in the user's code."""
    frames = traceback.extract_tb(error.__traceback__)
    users = [frame for frame in frames if not frame.filename.startswith(FRAMEWORK_PATHS)]
    return f"{Path(users[-1].filename).name}:{users[-1].lineno}" if users else "define()"


def _remedy(error: BaseException) -> str:
    """Return the remedy for mistakes that Python itself reports, without saying what to do."""
    if isinstance(error, AttributeError):
        return _remedy_of_attribute(error)
    if isinstance(error, TypeError) and ".define() missing" in text_of(error):
        return (
            ". define() takes only self. Declare parameters as class attributes, as in "
            "`limit = Param(int, default=10)`."
        )
    if not (isinstance(error, TypeError) and text_of(error).endswith("argument: 'uid'")):
        return ""
    return (
        ". A step with state needs a name of its own, as in process(..., uid='running-total'): "
        "it names the state in checkpoints, so choose it once and keep it."
    )


def _remedy_of_attribute(error: AttributeError) -> str:
    """Return the remedy for a method that a stream or a source does not have."""
    name = getattr(error, "name", None) or ""
    given: object = getattr(error, "obj", None)
    if isinstance(given, Connector):
        return (
            f". Declare a source or a sink as a class attribute of the pipeline. In define(), "
            f"self.NAME.{name}(...) then reads it."
        )
    if not type(given).__module__.startswith(__package__ or ""):
        return ""
    known = [each for each in dir(given) if not each.startswith("_")]
    near = difflib.get_close_matches(name, known, n=1)
    if near:
        return f". Did you mean {near[0]!r}?"
    return ". A step of this name comes before key_by(...)." if name in _BEFORE_KEY_BY else ""


_BEFORE_KEY_BY = frozenset({"map", "filter", "flat_map", "to", "union", "key_by"})


def _check_parallelism(name: str, parallelism: int, max_parallelism: int | None) -> None:
    groups = DEFAULT_MAX_PARALLELISM if max_parallelism is None else max_parallelism
    if not 1 <= parallelism <= groups <= MAX_PARALLELISM_LIMIT:
        raise PipelineError(
            f"{name}: 1 <= parallelism ({parallelism}) <= max_parallelism ({groups}) <= "
            f"{MAX_PARALLELISM_LIMIT} must hold."
        )


def _check_dropped(body: type) -> None:
    """Refuse a class in whose body a second assignment has taken the name of a source or a sink.
    Python drops the first declaration, and nothing would be read or written there.
    """
    kept = list(vars(body).values())
    for connector in declared_in(body):
        if not any(value is connector for value in kept):
            raise PipelineError(
                f"{connector.location}: {body.__name__} drops the declaration for "
                f"{connector.target}, because another assignment has the same name. Give one of "
                "them another name, or remove it."
            )


def _check_connector(pipeline: str, key: str, connector: Connector) -> None:
    if connector.names[0] != key:
        raise PipelineError(
            f"{connector.location}: {pipeline}.{key} is the same object as "
            f"{connector.names[0]!r}. Declare each source and sink separately."
        )
    if _CONNECTOR_NAME.fullmatch(key) is None:
        raise PipelineError(
            f"{connector.location}: {pipeline}.{key}: the name of a source or sink is lower-case "
            "letters, digits and underscores, 63 at most: it is part of transactional ids."
        )
