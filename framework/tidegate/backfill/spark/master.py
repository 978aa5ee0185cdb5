"""Checks the address of a Spark master, and whether a standalone master answers there.

If a standalone master does not answer, Spark tries for a minute. It then reports that all masters
are unresponsive, without their addresses. So this module tries a connection first.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from typing import Final

from tidegate.errors import ConfigError, SparkError

CONNECT_TIMEOUT_S: Final = 5.0  # applies to each address; a master answers in milliseconds
STANDALONE: Final = "spark://"
CONNECT: Final = "sc://"
TASK_FAILURES: Final = 4  # Spark's default for all other masters (spark.task.maxFailures)


def is_local(master: str) -> bool:
    """Return whether the driver, the executors and the workers all run on this machine."""
    return master == "local" or master.startswith(("local[", "local-cluster["))


def is_on_this_machine(master: str) -> bool:
    """Return whether the address proves that all processes of a master run on this machine.

    Only workers of this machine can reach a standalone master with a loopback address. If the
    address is the machine's own name, workers of other machines can reach it too.
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
    """Refuse the address of a Spark Connect server.

    The last part of a transactional id is Spark's id of a task's run. This id is unique only within
    one SparkContext. The driver detects the end of a SparkContext, because the JVM ends with it. A
    client of Spark Connect does not detect it. If the server restarts, the client sends the same
    job to the new server. The new tasks then get the ids of old tasks that may still run elsewhere.

    Raises:
        ConfigError: the address is that of a Spark Connect server.
    """
    if master.startswith(CONNECT):
        message = (
            f"A backfill cannot run through Spark Connect ({master}), because its client may"
            " silently run the job of a wave again on another Spark. Give --master the address of"
            " the cluster's own master, or start the command on the cluster with spark-submit."
        )
        raise ConfigError(message)


def check_reachable(master: str) -> None:
    """Return if an address of a standalone master accepts a connection. For other kinds of masters,
    check only the form of the address.

    Raises:
        ConfigError: the text is not the address of a master that a backfill can use.
        SparkError: no address of the standalone master answers.
    """
    check_connect(master)
    if not master.startswith(STANDALONE):
        if not is_local(master) and "://" not in master and master != "yarn":
            message = (
                f"{master!r} is not the address of a Spark master. Write local[N],"
                " local[N,FAILURES], spark://HOST:PORT, yarn or k8s://URL."
            )
            raise ConfigError(message)
        return
    failures = []
    for address in master.removeprefix(STANDALONE).split(","):
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal():
            message = (
                f"{master!r} is not the address of a Spark master. After spark://, write HOST:PORT"
                " or several of them, separated by commas."
            )
            raise ConfigError(message)
        try:
            with socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT_S):
                return
        except OSError as error:
            failures.append(f"{address} ({error.strerror or error})")
    message = (
        f"No Spark master answers at {', '.join(failures)}. Check the address, and check that the"
        " master runs."
    )
    raise SparkError(message)


def with_retries(master: str) -> str:
    """Return the master. For `local[N]`, return `local[N,4]`, which runs crashed tasks again."""
    found = re.fullmatch(r"local(?:\[([^,\]]+)\])?", master)
    return master if found is None else f"local[{found[1] or 1},{TASK_FAILURES}]"
