"""What the address of a Spark master says, and whether a standalone master answers there.

Spark itself tries a standalone master for a minute and then says that all masters are unresponsive,
without their addresses. So a connection is tried first.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from typing import Final

from tidegate.errors import ConfigError, SparkError

CONNECT_TIMEOUT_S: Final = 5.0  # for each address; a master answers in milliseconds
STANDALONE: Final = "spark://"
CONNECT: Final = "sc://"
TASK_FAILURES: Final = 4  # as everywhere else in Spark (spark.task.maxFailures)


def is_local(master: str) -> bool:
    """Whether driver, executors and workers run on this machine only."""
    return master == "local" or master.startswith(("local[", "local-cluster["))


def is_on_this_machine(master: str) -> bool:
    """Whether all that belongs to a master runs on this machine, as far as its address says it.

    A standalone master with a loopback address is reached by workers of this machine only. One with
    the machine's own name is not: others can reach it too.
    """
    if not master.startswith(STANDALONE):
        return is_local(master)
    hosts = [each.rpartition(":")[0] for each in master.removeprefix(STANDALONE).split(",")]
    return all(_is_loopback(host.strip("[]")) for host in hosts)


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_connect(master: str) -> None:
    """Return unless it is a server of Spark Connect.

    The last part of a transactional id is Spark's id of a task's run, which is unique in one
    SparkContext only. The driver sees the end of a SparkContext by the end of its JVM. A client of
    Connect does not see it: if the server is started again, the client sends it the same job again,
    and its tasks get the ids of those that may still run elsewhere.

    Raises:
        ConfigError: it is one.
    """
    if master.startswith(CONNECT):
        message = (
            f"A backfill does not run through Spark Connect ({master}), whose client may run a"
            " wave's job again on another Spark without saying so. Give --master the address of"
            " the cluster's own master, or start the command on the cluster by spark-submit."
        )
        raise ConfigError(message)


def check_reachable(master: str) -> None:
    """Return if one address of a standalone master accepts a connection, or it is another kind.

    Raises:
        ConfigError: it is no address of a master.
        SparkError: no address answers.
    """
    check_connect(master)
    if not master.startswith(STANDALONE):
        if not is_local(master) and "://" not in master and master != "yarn":
            message = (
                f"{master!r} is not a Spark master: write local[N], local[N,FAILURES],"
                " spark://HOST:PORT, yarn or k8s://URL."
            )
            raise ConfigError(message)
        return
    failures = []
    for address in master.removeprefix(STANDALONE).split(","):
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal():
            message = f"{master!r} is not a Spark master: each address must be HOST:PORT."
            raise ConfigError(message)
        try:
            with socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT_S):
                return
        except OSError as error:
            failures.append(f"{address} ({error.strerror or error})")
    message = (
        f"No Spark master answers at {', '.join(failures)}. Check the address, and that the master"
        " runs."
    )
    raise SparkError(message)


def with_retries(master: str) -> str:
    """A local master that runs a crashed task again: `local[2]` never does, `local[2,4]` does."""
    found = re.fullmatch(r"local(?:\[([^,\]]+)\])?", master)
    return master if found is None else f"local[{found[1] or 1},{TASK_FAILURES}]"
