"""The loader of the effective configuration, from defaults, class statement, file, environment and
command line.

Later places win. The loader keeps each value under its dotted key (`checkpoint.interval`) together
with its origin. So an error can name the file or the variable, the key, and the nearest known key.
Every key below `kafka.properties`, and below the `properties` of a source or sink, is a librdkafka
setting: `sasl.password` may be written as a table, as a quoted key, or as
`TIDEGATE_KAFKA__PROPERTIES__SASL__PASSWORD`. In the same way, every key below `backfill.spark` is a
Spark setting, with or without its first word `spark`.

Only the process that a user starts loads the configuration, and only this module imports pydantic
for it. All other processes receive the result (`Config.from_dict`).
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import (
    Any,
    NamedTuple,
    NoReturn,
    TypeGuard,
    TypeVar,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from pydantic import TypeAdapter, ValidationError

from tidegate.config import (
    NO_VALUE,
    RENAMED,
    ClusterSettings,
    Config,
    Section,
    Units,
    flattened,
    refuse_foreign_code,
    with_unit,
)
from tidegate.errors import ConfigError
from tidegate.masking import MASK, is_secret, masked_text, remember

FILE_NAME = "tidegate.toml"
PREFIX = "TIDEGATE_"
NOT_SETTINGS = "TIDEGATE_TEST_"
"""The prefix of variables that belong to tests of tidegate."""
PARAMETERS = "TIDEGATE_PARAMS__"
"""The prefix of variables that are parameters of a pipeline, not settings."""

CLASS_STATEMENT = "the class statement"
COMMAND_LINE = "the command line"

AnySection = TypeVar("AnySection", bound=Section)

_ADAPTERS: dict[type[Any], TypeAdapter[Any]] = {}
"""The validators by class. pydantic takes 40 ms to make that of the whole configuration."""

_SPARK = "backfill.spark."
"""The beginning of the key of each setting of Spark."""

_ROOT_USER = 0
"""The id of the superuser, who can change every file anyway."""

_SIMILAR = 0.6
"""The minimum similarity of a key that is suggested; also difflib's own default."""


class _Value(NamedTuple):
    value: Any
    origin: str


def load(
    *,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    class_statement: Mapping[str, Any] | None = None,
    command_line: Mapping[str, Any] | None = None,
    origin: str = COMMAND_LINE,
) -> Config:
    """Return the effective configuration of a run from `folder`.

    `class_statement` and `command_line` map dotted keys to values, as texts or of their own type.
    `origin` says in errors where the values of `command_line` are from.
    Raise ConfigError for a wrong setting. The error names the key, its origin and, for an unknown
    key, the nearest known one.
    """
    values = _layers(folder, environment, class_statement, command_line, origin)
    remember({key: value for key, (value, _) in values.items()})
    return _validated(values)


def load_with_origins(
    *,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    command_line: Mapping[str, Any] | None = None,
) -> tuple[Config, dict[str, str]]:
    """Return the configuration as `load` does, and where each key that is not a default comes
    from.
    """
    values = _layers(folder, environment, None, command_line, COMMAND_LINE)
    remember({key: value for key, (value, _) in values.items()})
    return _validated(values), {key: origin for key, (_, origin) in values.items()}


def written(key: str, value: object) -> object:
    """Return a value of `Config.to_dict` as a user writes it: a duration and a size with the
    largest unit that gives a whole number, and the text that stands for None.
    """
    if value is None:
        return no_value(key)
    units = _units().get(key)
    if units is None or not isinstance(value, int):
        return value
    return with_unit(value, units)


def _layers(
    folder: Path | None,
    environment: Mapping[str, str] | None,
    class_statement: Mapping[str, Any] | None,
    command_line: Mapping[str, Any] | None,
    origin: str,
) -> dict[str, _Value]:
    layers = [
        _given(class_statement or {}, CLASS_STATEMENT),
        _from_file(folder or Path.cwd()),
        _from_environment(environment or {}),
        _given(command_line or {}, origin),
    ]
    values: dict[str, _Value] = {}
    for layer in layers:
        values.update(layer)
    return values


def find_file(folder: Path) -> Path | None:
    """Return the nearest `tidegate.toml` in `folder` or above it, or None if none exists.

    Raise ConfigError if another user could have put the file there: settings say which brokers get
    the credentials and where state is written.
    """
    for place in (folder, *folder.parents):
        path = place / FILE_NAME
        if path.is_file():
            _refuse_foreign_owner(path, folder)
            return path
    return None


def known_keys() -> dict[str, Any]:
    """Return every key with its default; `*` stands for the name of a source or sink, or of a
    property.
    """
    return dict(_known())


def no_value(key: str) -> str:
    """Return the text that stands for None in an optional setting."""
    return NO_VALUE.get(key, "none")


def _refuse_foreign_owner(path: Path, folder: Path) -> None:
    """Raise ConfigError if the file belongs to another user, other than root.

    In the working folder itself, the owner of that folder is trusted too, because commands import
    code from there. Elsewhere the folder of the file is checked like the file. If the file is a
    symbolic link, both the link and its target are checked.
    """
    trusted = {os.geteuid(), _ROOT_USER}
    checked = [path.stat(), path.lstat()]
    if path.parent == folder:
        trusted.add(folder.stat().st_uid)
    else:
        checked.append(path.parent.stat())
    for status in checked:
        if status.st_uid not in trusted:
            raise ConfigError(
                f"{path} is not read, because it or its folder belongs to another user (user id "
                f"{status.st_uid}, and this is {os.geteuid()}). If you trust it, copy it into "
                f"{folder}, or make it and its folder your own."
            )


def _given(values: Mapping[str, Any], origin: str) -> dict[str, _Value]:
    return _checked(_named(flattened(values), origin))


def _named(pairs: Iterable[tuple[str, Any]], origin: str) -> dict[str, _Value]:
    """Return the values by their keys. A setting of Spark has no first word `spark`."""
    values: dict[str, _Value] = {}
    for written_key, value in pairs:
        key = re.sub(rf"^{re.escape(_SPARK)}spark\.", _SPARK, written_key)
        if key in values:
            raise ConfigError(
                f"Setting {key} in {origin} is given twice, with and without the word spark. "
                "Remove one of them."
            )
        values[key] = _Value(value, origin)
    return values


def _from_file(folder: Path) -> dict[str, _Value]:
    path = find_file(folder)
    if path is None:
        return {}
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8-sig"))  # editors may write a BOM
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}.") from error
    for section, value in content.items():
        if not isinstance(value, Mapping):
            _refuse_unknown(section, str(path))
    return _checked(_named(flattened(content), str(path)))


def _from_environment(environment: Mapping[str, str]) -> dict[str, _Value]:
    values: dict[str, _Value] = {}
    for name, text in sorted(environment.items()):
        if name.startswith(PREFIX) and not name.startswith((NOT_SETTINGS, PARAMETERS)):
            key = name.removeprefix(PREFIX).lower().replace("__", ".")
            values |= _named([(key, text)], f"the environment variable {name}")
    return _checked(values)


def _checked(values: dict[str, _Value]) -> dict[str, _Value]:
    known = known_keys()
    for key, (value, origin) in values.items():
        if _pattern(key) not in known:
            _refuse_unknown(key, origin)
        refuse_foreign_code([(key, value)], origin)
    return values


def _refuse_unknown(key: str, origin: str) -> NoReturn:
    if key in RENAMED:
        raise ConfigError(
            f"Setting {key} in {origin} is called {RENAMED[key]} now. Rename it there."
        )
    if any(known.startswith(f"{_table(key)}.") for known in known_keys()):
        raise ConfigError(f"Setting {key} in {origin} has settings of its own: write [{key}].")
    named = key.split(".")[1] if _table(key) != key else "NAME"
    shown = [each.replace("*", named) for each in known_keys() if not each.endswith(".*")]
    near = difflib.get_close_matches(key, shown, n=1, cutoff=_SIMILAR) or [
        name for name in shown if name.replace(".", "_") == key.replace(".", "_")
    ]
    hint = f"did you mean {near[0]}?" if near else "tidegate config lists all keys."
    if near and origin.startswith("the environment"):
        hint += f" As a variable that is {PREFIX}{near[0].replace('.', '__').upper()}."
    raise ConfigError(f"Unknown setting {key} in {origin}: {hint}")


def _table(key: str) -> str:
    """Return the key of a table, with `*` for the name of a source or sink."""
    section, _, name = key.partition(".")
    if section not in {"sources", "sinks"} or not name:
        return key
    return ".".join([section, "*", *name.split(".")[1:]])


def _pattern(key: str) -> str:
    """Return the key, with `*` for each part that may be any name."""
    parts = key.split(".")
    if parts[0] in {"sources", "sinks"} and len(parts) > 2:  # noqa: PLR2004  # section, name, key
        parts[1] = "*"
    if "properties" in parts[1:-1]:
        parts = [*parts[: parts.index("properties") + 1], "*"]
    if key.startswith(_SPARK):
        return f"{_SPARK}*"
    return ".".join(parts)


def _validated(values: Mapping[str, _Value]) -> Config:
    nested: dict[str, Any] = {}
    measured = _units()
    optional = {name for name, default in known_keys().items() if default is None}
    for key, (value, origin) in values.items():
        path = key.split(".")
        if _pattern(key).endswith((".properties.*", f"{_SPARK}*")):
            cut = 2 if key.startswith(_SPARK) else path.index("properties") + 1
            path = [*path[:cut], ".".join(path[cut:])]
            value = _property_text(value)  # noqa: PLW2901  # as librdkafka and Spark take it
        elif _pattern(key) in optional and value == no_value(key):
            value = None  # noqa: PLW2901  # the text means None
        elif key in NO_VALUE and value == "none":
            raise ConfigError(f"Setting {key} = 'none' in {origin}: write \"{NO_VALUE[key]}\".")
        elif key in measured and isinstance(value, int | float) and origin != CLASS_STATEMENT:
            # In code and between processes, a number is in the smallest unit. A person who writes
            # 10 often means seconds.
            raise ConfigError(
                f"Setting {key} = {value!r} in {origin} has no unit: write it as text with one of "
                f"{', '.join(measured[key])}."
            )
        table = nested
        for name in path[:-1]:
            table = table.setdefault(name, {})
        table[path[-1]] = value
    try:
        config = checked(Config, nested)
    except ValidationError as error:
        raise _explained(error, values) from error
    _check_heartbeats(config.cluster, values)
    return config


def checked(section: type[AnySection], settings: Mapping[str, Any]) -> AnySection:
    """Return a section of the configuration, or all of it, with these settings. Durations may be
    texts. Raise pydantic.ValidationError for a wrong value and an unknown key.
    """
    if section not in _ADAPTERS:
        _ADAPTERS[section] = TypeAdapter(section)
    found: AnySection = _ADAPTERS[section].validate_python(dict(settings))
    return found


def _check_heartbeats(cluster: ClusterSettings, values: Mapping[str, _Value]) -> None:
    if cluster.heartbeat_timeout < 2 * cluster.heartbeat_interval:
        key = "cluster.heartbeat_timeout"
        found = values.get(key, _Value(cluster.heartbeat_timeout, "the configuration"))
        raise ConfigError(
            f"Setting {key} = {found.value!r} in {found.origin}: heartbeats are "
            f"{cluster.heartbeat_interval} ms apart, so a healthy process could count as lost; "
            "make the timeout at least twice cluster.heartbeat_interval."
        )


def _explained(error: ValidationError, values: Mapping[str, _Value]) -> ConfigError:
    """Return the first mistake in one paragraph. Pydantic's own report describes its models
    instead.
    """
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"])
    given = values.get(key, _Value(first["input"], "the configuration"))
    origin = given.origin
    shown = MASK if is_secret(key) else masked_text(repr(given.value))
    reason = masked_text(first["msg"].removeprefix("Value error, "))
    if reason.startswith(shown):
        return ConfigError(f"Setting {key} in {origin}: {reason}.")
    return ConfigError(f"Setting {key} = {shown} in {origin}: {reason}.")


def _property_text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


@cache
def _known() -> Mapping[str, Any]:
    """Return what `known_keys` copies. To read the declarations takes milliseconds."""
    return dict(_keys_of(Config, ""))


@cache
def _units() -> Mapping[str, tuple[str, ...]]:
    """Return each key whose values carry a unit, with the possible units."""
    return dict(_measured(Config, ""))


def _keys_of(section: type[Section], prefix: str) -> Iterator[tuple[str, Any]]:
    kinds = get_type_hints(section, include_extras=True)
    for field in fields(cast("type[Config]", section)):
        kind = kinds[field.name]
        item = get_args(kind)[1] if get_origin(kind) is dict else None
        if _is_section(kind):
            yield from _keys_of(kind, f"{prefix}{field.name}.")
        elif _is_section(item):
            yield from _keys_of(item, f"{prefix}{field.name}.*.")
        elif item is not None:
            yield f"{prefix}{field.name}.*", None
        else:
            yield f"{prefix}{field.name}", field.default


def _measured(section: type[Section], prefix: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    for name, kind in get_type_hints(section, include_extras=True).items():
        if _is_section(kind):
            yield from _measured(kind, f"{prefix}{name}.")
        for alternative in (kind, *get_args(kind)):
            for units in getattr(alternative, "__metadata__", ()):
                if isinstance(units, Units):
                    yield f"{prefix}{name}", units.names


def _is_section(kind: object) -> TypeGuard[type[Section]]:
    return isinstance(kind, type) and issubclass(kind, Section)
