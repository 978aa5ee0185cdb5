"""The base classes of users' functions, with their contexts and side outputs.

A function returns its results as an iterable. `yield` is easy to read; `return (result,)` saves
50 ns per record. There is no `ctx.emit`: it would be as fast as a tuple, but a second way to do the
same. A type checker could not check its argument either, unless the output type were repeated.

The data plane's operators call the functions. They subclass the contexts, and their subclasses
decide where side outputs go.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Generic, Never, TypeVar, get_args, get_origin

from typing_extensions import TypeForm, get_original_bases

from tidegate.api.records.types import KeyLike, type_info
from tidegate.api.state.state import State
from tidegate.api.time.timers import Fired, TimerDeclaration
from tidegate.errors import PipelineError
from tidegate.graph.stream_graph import MAIN, UNKNOWN

K = TypeVar("K", bound=KeyLike)
In = TypeVar("In")
L = TypeVar("L")
R = TypeVar("R")
Out = TypeVar("Out")
X = TypeVar("X")


class SideOutput(Generic[X]):
    """A typed second output of a function, declared as a class attribute.

    Example: `late = SideOutput(Order)`. PipelineError if the type has no schema.
    """

    def __init__(self, of: TypeForm[X]) -> None:
        type_info(of)
        self.record_type = of
        self.name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        if not self.name:
            self.name = name


class ProcessContext:
    """The context of the current record, through which a function emits side outputs."""

    __slots__ = ()

    def output(self, tag: SideOutput[X], value: X) -> None:
        """Send a value to a side output that the function class declares.

        UserCodeError for any other tag.
        """
        raise NotImplementedError

    @property
    def timestamp_ms(self) -> int:
        """Event time of the record, or of the timer that fires, in milliseconds since the Unix
        epoch. For a processing timer it is the first time after the watermark.

        PipelineError if no source of the record declares `event_time` or `watermarks`.
        """
        raise NotImplementedError

    @property
    def processing_time_ms(self) -> int:
        """Time of the slot's clock, in milliseconds since the Unix epoch. It is virtual in tests.

        A restart processes records again at another time, so results that depend on it differ.
        """
        raise NotImplementedError

    @property
    def watermark_ms(self) -> int:
        """Watermark of this step, in milliseconds since the Unix epoch; -2**63 before the first.

        No record with this event time or an earlier one is expected. It never goes back while the
        step runs. In a step with state, no restore takes it back, if `checkpoint.mode` is
        "exactly_once".
        """
        raise NotImplementedError


class Context(ProcessContext, Generic[K]):
    """The context of a record of a keyed stream, with the record's key.

    A key that is a datetime, or holds one, is in UTC, whatever time zone `key_by` returned.
    """

    __slots__ = ("key",)
    key: K

    @property
    def timers(self) -> Never:
        """Refuse the access: a function declares its timers. PipelineError."""
        raise PipelineError(
            "ctx.timers does not exist: declare a timer on the function class, as in "
            "`silence = EventTimer()`, and set it with self.silence.set(ctx.timestamp_ms + 60_000)."
        )


def _check_state_names(of: type[Function]) -> None:
    """Refuse contradictory names of states: each name may be declared, renamed or dropped once.

    The check does not depend on the state names in a checkpoint.
    """
    declared = of.declared_states
    dropped: object = of.dropped_states
    if not isinstance(dropped, tuple) or not all(isinstance(name, str) for name in dropped):
        raise PipelineError(
            f"{of.__name__}.dropped_states must be a tuple of names, as in "
            'dropped_states = ("total",), with the comma.'
        )
    formers = [state.renamed_from for state in declared.values() if state.renamed_from]
    for name in dropped:
        if name in declared or name in formers:
            raise PipelineError(
                f"{of.__name__}: state {name!r} is in dropped_states, and is declared or renamed "
                "at the same time. Remove it from dropped_states, or choose another name."
            )
    for former in formers:
        if former in declared or formers.count(former) > 1:
            raise PipelineError(
                f"{of.__name__}: renamed_from={former!r} names a state that the class declares, or "
                "that two states were renamed from. A name can have only one successor; remove "
                "renamed_from after the next checkpoint."
            )


class Function:
    """The common base of functions: it collects the declared states, side outputs and types.

    The types are those in `class X(Base[K, In, Out])`.
    """

    declared_states: ClassVar[dict[str, State]] = {}
    declared_outputs: ClassVar[dict[str, SideOutput[Any]]] = {}
    declared_types: ClassVar[tuple[object, ...]] = ()
    dropped_states: ClassVar[tuple[str, ...]] = ()
    """Names of states that older code of the class declared and whose values must be deleted.

    A restore deletes their rows, so that a later state of that name starts empty. The line may be
    removed after the next checkpoint.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        members = {name: v for base in reversed(cls.__mro__) for name, v in vars(base).items()}
        cls.declared_states = {n: v for n, v in members.items() if isinstance(v, State)}
        cls.declared_outputs = {n: v for n, v in members.items() if isinstance(v, SideOutput)}
        declared: dict[str, State | SideOutput[Any]] = {
            **cls.declared_states,
            **cls.declared_outputs,
        }
        for name, attribute in declared.items():
            if attribute.name != name:
                raise PipelineError(
                    f"{cls.__name__}.{name} is the same object as {cls.__name__}.{attribute.name}. "
                    "Declare each state and side output separately."
                )
        if MAIN in cls.declared_outputs:
            raise PipelineError(
                f"{cls.__name__}.{MAIN}: {MAIN!r} is the name of the ordinary results; choose "
                "another."
            )
        _check_state_names(cls)
        cls.declared_types = cls._resolve_types()

    @classmethod
    def record_type(cls) -> object:
        """Return the declared type of the input records; UNKNOWN if it is not declared."""
        return _known(cls.declared_types[-2]) if cls.declared_types else UNKNOWN

    @classmethod
    def result_type(cls) -> object:
        """Return the declared type of the results; UNKNOWN if it is not declared."""
        return _known(cls.declared_types[-1]) if cls.declared_types else UNKNOWN

    @classmethod
    def _resolve_types(cls) -> tuple[object, ...]:
        """Return the type arguments of `Process` or `KeyedProcess` for this class.

        There may be any number of generic classes between the class and its base.
        """
        for base in get_original_bases(cls):
            origin = get_origin(base) or base
            if not isinstance(origin, type) or not issubclass(origin, Function):
                continue
            if Function in origin.__bases__:
                return get_args(base)
            bound = dict(zip(getattr(origin, "__parameters__", ()), get_args(base), strict=False))
            return tuple(bound.get(declared, declared) for declared in origin.declared_types)
        return ()

    def open(self) -> None:
        """Prepare the function, for example create clients and load models.

        It is called once in the process that runs the function, before the first record.
        """

    def close(self) -> None:
        """Release the function's resources.

        It is called once after the last record, also if the attempt fails.
        """


class Process(Function, Generic[In, Out]):
    """A function that returns any number of results for each record, without key or state."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls.declared_states:
            raise PipelineError(
                f"{cls.__name__}.{next(iter(cls.declared_states))}: state belongs to a key; derive "
                "from KeyedProcess and use the function after key_by."
            )

    def process(self, record: In, ctx: ProcessContext, /) -> Iterable[Out]:
        """Process one record and return its results, which the next step gets in this order.

        By default, an exception ends the attempt, and the job restarts from its last checkpoint.
        `on_error` of the step can skip or dead-letter the record instead.
        """
        raise NotImplementedError


class KeyedProcess(Function, Generic[K, In, Out]):
    """A function that returns any number of results for each record, with state per key."""

    def process(self, record: In, ctx: Context[K], /) -> Iterable[Out]:
        """Process one record and return its results, which the next step gets in this order.

        Records of one key come in order. By default, an exception ends the attempt, and the job
        restarts from its last checkpoint, so the changes of state since then are undone. `on_error`
        of the step can skip or dead-letter the record instead.
        """
        raise NotImplementedError

    def on_timer(self, fired: Fired, ctx: Context[K], /) -> Iterable[Out]:
        """Handle a timer of a key, with the state of the key in place, and return the results.

        A function that declares timers must have this method. An exception always ends the attempt,
        because there is no record that `on_error` could skip.
        """
        raise NotImplementedError

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        _check_timers(cls, handled=cls.on_timer is not KeyedProcess.on_timer)

    @classmethod
    def key_type(cls) -> object:
        """Return the declared type of the keys; UNKNOWN if it is not declared."""
        return _known(cls.declared_types[0]) if cls.declared_types else UNKNOWN


class CoProcess(Function, Generic[K, L, R, Out]):
    """A function of two keyed streams. Both sides of a key have one set of states and timers.

    The records of one side come in order. Which side comes first depends on the arrival, so a
    function keeps what waits for the other side in state, and a timer says how long.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        _check_timers(cls, handled=cls.on_timer is not CoProcess.on_timer)

    def process_left(self, record: L, ctx: Context[K], /) -> Iterable[Out]:
        """Process one record of the stream on which `connect` was called, as
        `KeyedProcess.process` does.
        """
        raise NotImplementedError

    def process_right(self, record: R, ctx: Context[K], /) -> Iterable[Out]:
        """Process one record of the stream that was given to `connect`."""
        raise NotImplementedError

    def on_timer(self, fired: Fired, ctx: Context[K], /) -> Iterable[Out]:
        """Handle a timer of a key, as `KeyedProcess.on_timer` does."""
        raise NotImplementedError

    @classmethod
    def key_type(cls) -> object:
        """Return the declared type of the keys; UNKNOWN if it is not declared."""
        return _known(cls.declared_types[0]) if cls.declared_types else UNKNOWN

    @classmethod
    def side_type(cls, side: int) -> object:
        """Return the declared type of the records of one side; UNKNOWN if it is not declared."""
        return _known(cls.declared_types[1 + side]) if cls.declared_types else UNKNOWN


def _check_timers(of: type[Function], *, handled: bool) -> None:
    declared = [n for n, s in of.declared_states.items() if isinstance(s, TimerDeclaration)]
    if declared and not handled:
        raise PipelineError(
            f"{of.__name__}.{declared[0]} is a timer, and the class has no on_timer(self, fired, "
            "ctx), which handles it."
        )


def _known(declared: object) -> object:
    return UNKNOWN if isinstance(declared, TypeVar) or declared is Any else declared
