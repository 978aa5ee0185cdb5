"""Checks the address of a Spark master, whether something answers there, and what else it needs.

If a standalone master does not answer, Spark tries for a minute. It then reports that all masters
are unresponsive, without their addresses. So this module tries a connection first, and does the
same for the API of Kubernetes. A dry run makes these checks too.
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from tidegate.errors import ConfigError, SparkError

CONNECT_TIMEOUT_S: Final = 5.0  # applies to each address; a master answers in milliseconds
STANDALONE: Final = "spark://"
KUBERNETES: Final = "k8s://"
YARN: Final = "yarn"
CONNECT: Final = "sc://"
TASK_FAILURES: Final = 4  # Spark's default for all other masters (spark.task.maxFailures)

_LOCAL: Final = re.compile(
    r"local(?:\[(?:[1-9]\d*|\*)(?:\s*,\s*[1-9]\d*)?\]|-cluster\[\s*\d+\s*,\s*\d+\s*,\s*\d+\s*\])?"
)
_SCHEMES: Final = {False: ("spark",), True: ("https", "http")}
"""The schemes of a URL, by whether it is that of Kubernetes."""
_PORTS: Final = {"https": 443, "http": 80}
_YARN_VARIABLES: Final = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")
_IMAGES: Final = ("kubernetes.container.image", "kubernetes.executor.container.image")


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


def check_form(master: str) -> None:
    """Raise ConfigError if the text is not the address of a master that a backfill can use."""
    check_connect(master)
    if _LOCAL.fullmatch(master) or master == YARN:
        return
    if master.startswith((STANDALONE, KUBERNETES)):
        _addresses(master)
        return
    message = (
        f"{master!r} is not the address of a Spark master. Write local[N], local[N,FAILURES],"
        " spark://HOST:PORT, yarn or k8s://URL."
    )
    raise ConfigError(message)


def check_needs(
    master: str, settings: Mapping[str, str], environment: Mapping[str, str] = os.environ
) -> None:
    """Raise ConfigError if YARN or Kubernetes lacks what Spark needs to use it. `settings` are
    those of `[backfill.spark]`.
    """
    if master == YARN:
        folders = [environment[name] for name in _YARN_VARIABLES if environment.get(name)]
        if not any(map(os.path.isdir, folders)):
            found = f"Neither is a folder ({', '.join(folders)})" if folders else "Neither is set"
            message = (
                "The master yarn needs the environment variable HADOOP_CONF_DIR or YARN_CONF_DIR:"
                f" the folder with core-site.xml and yarn-site.xml of the cluster. {found}. For"
                " example: export HADOOP_CONF_DIR=/etc/hadoop/conf."
            )
            raise ConfigError(message)
    if master.startswith(KUBERNETES) and not any(map(settings.get, _IMAGES)):
        message = (
            f"The master {master} needs the image that the executors run. Set"
            f" -c backfill.spark.{_IMAGES[0]}=IMAGE, or {_IMAGES[0]} in [backfill.spark] of"
            " tidegate.toml."
        )
        raise ConfigError(message)


def check_reachable(master: str) -> None:
    """Return if an address of a standalone master, or the API of Kubernetes, accepts a connection.
    For other kinds of masters, check only the form of the address.

    Raises:
        ConfigError: the text is not the address of a master that a backfill can use.
        SparkError: no address answers.
    """
    check_form(master)
    if not master.startswith((STANDALONE, KUBERNETES)):
        return
    failures = []
    for host, port in _addresses(master):
        try:
            with socket.create_connection((host, port), CONNECT_TIMEOUT_S):
                return
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or error
            failures.append(f"{host}:{port} ({reason})")
    what, remedy = "Spark master answers", "check that the master runs"
    if master.startswith(KUBERNETES):
        what, remedy = "API of Kubernetes answers", "compare it with `kubectl cluster-info`"
    message = f"No {what} at {', '.join(failures)}. Check the address, and {remedy}."
    raise SparkError(message)


def _addresses(master: str) -> list[tuple[str, int]]:
    """Return the hosts and ports of a standalone master or of an API of Kubernetes. Raise
    ConfigError if an address has another form.
    """
    kubernetes = master.startswith(KUBERNETES)
    texts = [master.removeprefix(KUBERNETES)]
    if not kubernetes:
        texts = master.removeprefix(STANDALONE).split(",")
    found = []
    for text in texts:
        url = text if "://" in text else f"{'https' if kubernetes else 'spark'}://{text}"
        try:
            parts = urlsplit(url)
            port = parts.port or _PORTS.get(parts.scheme, 0)
        except ValueError:  # a port that is too large, or not a number
            parts, port = urlsplit(""), 0
        plain = kubernetes or (text == parts.netloc and "@" not in text)
        if not (parts.hostname and port and plain and parts.scheme in _SCHEMES[kubernetes]):
            remedy = "k8s://, write the URL of the API of Kubernetes: https://HOST:PORT."
            if not kubernetes:
                remedy = "spark://, write HOST:PORT or several of them, separated by commas."
            message = f"{master!r} is not the address of a Spark master. After {remedy}"
            raise ConfigError(message)
        found.append((parts.hostname, port))
    return found


def with_retries(master: str) -> str:
    """Return the master. For `local[N]`, return `local[N,4]`, which runs crashed tasks again."""
    found = re.fullmatch(r"local(?:\[([^,\]]+)\])?", master)
    return master if found is None else f"local[{found[1] or 1},{TASK_FAILURES}]"
