"""The settings of `[backfill.spark]`, which go to the Spark session that the command starts.

A key is the name of a Spark setting without its first word: `executor.memory` means
`spark.executor.memory`. `config_load` accepts both forms. Spark itself ignores a name that it does
not know. So this module refuses a name that is almost the name of a setting that Spark knows. Other
unknown names are left alone, because Spark passes many prefixes on (`spark.hadoop.`,
`spark.executorEnv.`, plugins).

`RESERVED` has the settings that would break a backfill, or that have no effect in it.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, Final

from tidegate.backfill.spark.master import is_local
from tidegate.errors import ConfigError

TABLE: Final = "backfill.spark"
SPARK: Final = "spark."
_SIMILAR: Final = 0.9
"""The similarity from which an unknown name counts as a mistyped one."""

_MASTER: Final = "give the address of the master as --master or backfill.master"
_CONNECT: Final = "a backfill cannot run through Spark Connect"
_ROWS: Final = "tidegate sets it, because tasks must get the rows as they were sent"
_PYTHON: Final = "set the environment variable PYSPARK_PYTHON to the path of Python on the workers"
RESERVED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "master": _MASTER,
        "remote": _CONNECT,
        "api.mode": _CONNECT,
        "local.connect": _CONNECT,
        "submit.deployMode": "the command is the driver; to run it on the cluster, start it with"
        " spark-submit --deploy-mode cluster",
        "serializer": "tidegate needs Spark's own, with which alone a backfill is tested",
        "pyspark.python": _PYTHON,
        "pyspark.driver.python": "the command itself is the driver's Python",
        "sql.warehouse.dir": "tidegate sets it to a folder that it deletes at the end",
    }
)
"""The settings that a user cannot give, each with the reason or the remedy."""
RESERVED_PREFIXES: Final[Mapping[str, str]] = MappingProxyType(
    {"sql.adaptive.": _ROWS, "sql.execution.arrow.": _ROWS}
)
_TASK_FAILURES: Final = "task.maxFailures"
_JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
_FAMILIES: Final = {
    "k8s://": "org.apache.spark.deploy.k8s.Config",
    "yarn": "org.apache.spark.deploy.yarn.config.package",
}
"""The object that declares the settings of a kind of master, by the beginning of the address."""


def check_settings(settings: Mapping[str, str], master: str) -> None:
    """Raise ConfigError for the first setting that a user cannot give."""
    for name in sorted(settings):
        reason = RESERVED.get(name)
        for prefix, why in RESERVED_PREFIXES.items():
            reason = why if name.startswith(prefix) else reason
        if name == _TASK_FAILURES and is_local(master):
            reason = "a local master has its number of failures in its address: local[N,FAILURES]"
        if reason is not None:
            raise ConfigError(f"Setting {TABLE}.{name} cannot be given: {reason}. Remove it.")


def properties_of(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings by the names that Spark has for them."""
    return {f"{SPARK}{name}": value for name, value in settings.items()}


def merged(defaults: Mapping[str, str], properties: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of a session: `defaults`, and above them those of the user. The options
    of the driver's Java are joined, because the defaults have the folder of temporary files and the
    form of the log.
    """
    settings = {**defaults, **properties}
    options = [each[_JAVA_OPTIONS] for each in (defaults, properties) if _JAVA_OPTIONS in each]
    if options:
        settings[_JAVA_OPTIONS] = " ".join(options)
    return settings


def check_names(jvm: Any, names: Collection[str], master: str) -> None:
    """Raise ConfigError for a name that is almost the name of a setting that this Spark knows.

    `jvm` is the view of the gateway. No SparkContext needs to run.
    """
    if not names:
        return
    for beginning, declares in _FAMILIES.items():
        if master.startswith(beginning):
            jvm.java.lang.Class.forName(f"{declares}$").getField("MODULE$").get(None)
    entries = jvm.org.apache.spark.internal.config.ConfigEntry
    unknown = [name for name in sorted(names) if entries.findEntry(name) is None]
    if not unknown:
        return
    known, found = set(), entries.listAllEntries().iterator()
    while found.hasNext():
        known.add(str(found.next().key()))
    for name in unknown:
        near = nearest(name, known)
        if near is not None:
            mine, right = (f"{TABLE}.{each.removeprefix(SPARK)}" for each in (name, near))
            raise ConfigError(f"Spark has no setting {name}. Write {right} instead of {mine}.")


def nearest(name: str, known: Collection[str]) -> str | None:
    """Return the known name of which this is probably a mistyped form, if there is one."""
    lower = {each.lower(): each for each in known}
    found = difflib.get_close_matches(name.lower(), lower, n=1, cutoff=_SIMILAR)
    return lower[found[0]] if found else None
