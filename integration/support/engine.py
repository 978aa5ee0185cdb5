"""The Docker engine of this machine, and the images that tests run on it.

Every test on containers first calls `why_not`, which returns the reason if there is no engine. The
skipped test shows this reason. The names of the images come from the environment:

    KAFKA_TEST_IMAGE     a broker with the interface of apache/kafka; default apache/kafka:4.3.0
    TIDEGATE_TEST_IMAGE  default: tidegate:test, built from this tree
    TEST_EXTRA_CA_CERTS  PEM files, with colons between them, for builds behind a proxy with its own
                         certificates

The engine looks for a broker's image in this order: the named image if it is here, then an image
that was built here before. If neither exists, the named image is pulled. If no registry answers,
the image is built from `docker/kafka`, which has the same interface.
`python -m integration.support.engine` prepares both images and prints their names and sizes.
"""

from __future__ import annotations

import functools
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from docker.client import DockerClient
from docker.errors import APIError, BuildError, DockerException, ImageNotFound

ROOT = Path(__file__).parents[2]
KAFKA_IMAGE: Final = os.environ.get("KAFKA_TEST_IMAGE", "apache/kafka:4.3.0")
TIDEGATE_IMAGE: Final = os.environ.get("TIDEGATE_TEST_IMAGE", "tidegate:test")
BUILT_KAFKA: Final = "tidegate-kafka"
CONTEXT: Final = (
    "bootstrap.lock",
    "requirements.lock",
    "pyproject.toml",
    "README.md",
    "CHANGELOG.md",
    "LICENSE",
    "framework",
    "docker",
)
"""The files and folders of this tree that builds can see."""
LOG_LINES_SHOWN = 15
PASSED_ON: Final = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "PIP_INDEX_URL")
"""Variables that builds get as arguments if they are set."""


class NoImageError(Exception):
    """An image is not here, and cannot be pulled or built. The message holds the reason."""


@functools.cache
def why_not() -> str | None:
    """Return the reason why no engine can be used; None if an engine answers."""
    try:
        _knock()
        engine().ping()
    except (OSError, DockerException) as error:
        return f"no Docker engine answers: {error}"
    return None


def _knock() -> None:
    """Check that a process listens at the engine's Unix socket. Raise OSError if none does.

    Without this check the Docker client would leave its socket open if the connection fails. The
    warning about the open socket would then appear during another test.
    """
    where = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    if where.startswith("unix://"):
        with socket.socket(socket.AF_UNIX) as knocking:
            knocking.connect(where.removeprefix("unix://"))


def engine() -> Any:
    """Return a client of the engine."""
    return DockerClient.from_env()


@functools.cache
def kafka_image(version: str = KAFKA_IMAGE.rpartition(":")[2]) -> str:
    """Return the name of a broker's image of a version.

    Raises NoImageError if there is no such image and it cannot be pulled or built.
    """
    name = KAFKA_IMAGE if KAFKA_IMAGE.endswith(f":{version}") else f"apache/kafka:{version}"
    built = f"{BUILT_KAFKA}:{version}"
    for here in (name, built):
        if _is_here(here):
            return here
    try:
        engine().images.pull(name)
    except APIError:
        build(built, "docker/kafka/Dockerfile", {"KAFKA_VERSION": version})
        return built
    return name


@functools.cache
def tidegate_image() -> str:
    """Return the name of tidegate's image: the named one, or a new build of this tree.

    Raises NoImageError if the image cannot be pulled or built.
    """
    if "TIDEGATE_TEST_IMAGE" not in os.environ:
        build(TIDEGATE_IMAGE, "docker/Dockerfile", {})
    elif not _is_here(TIDEGATE_IMAGE):
        try:
            engine().images.pull(TIDEGATE_IMAGE)
        except APIError as error:
            raise NoImageError(
                f"{TIDEGATE_IMAGE} is not here, nor can be pulled: {error}"
            ) from error
    return TIDEGATE_IMAGE


def build(tag: str, dockerfile: str, arguments: Mapping[str, str]) -> None:
    """Build an image from a copy of this tree.

    Raises NoImageError, with the last lines of the build.
    """
    given = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    with tempfile.TemporaryDirectory(prefix="tidegate-image-") as folder:
        context = Path(folder)
        _fill(context)
        try:
            engine().images.build(
                path=str(context),
                dockerfile=dockerfile,
                tag=tag,
                buildargs=given | dict(arguments),
                rm=True,
                forcerm=True,
            )
        except BuildError as error:
            said = "".join(line.get("stream", "") for line in error.build_log)
            tail = "\n".join(said.splitlines()[-LOG_LINES_SHOWN:])
            raise NoImageError(f"{tag} could not be built: {error}\n{tail}") from error
        except APIError as error:
            raise NoImageError(f"{tag} could not be built: {error}") from error


@functools.cache
def compose_command() -> tuple[str, ...] | None:
    """Return the first words of Docker Compose: the engine's plugin or the older program.

    Returns None if this machine has neither.
    """
    for words in (("docker", "compose"), ("docker-compose",)):
        if shutil.which(words[0]) is not None:
            asked = subprocess.run([*words, "version"], capture_output=True, check=False)
            if asked.returncode == 0:
                return words
    return None


def _is_here(name: str) -> bool:
    try:
        engine().images.get(name)
    except ImageNotFound:
        return False
    return True


def _fill(context: Path) -> None:
    """Copy the files that a build can see. Keep their times, because the build cache uses them."""
    without = shutil.ignore_patterns("__pycache__", "*.crt")
    for name in CONTEXT:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, context / name, ignore=without)
        else:
            shutil.copy2(ROOT / name, context / name)
    extra = filter(None, os.environ.get("TEST_EXTRA_CA_CERTS", "").split(":"))
    for number, certificate in enumerate(extra):
        shutil.copyfile(certificate, context / "docker" / f"ca{number}.crt")


def main() -> int:
    """Prepare both images, and return the exit code."""
    reason = why_not()
    if reason is not None:
        print(reason, file=sys.stderr)
        return 1
    for get in (kafka_image, tidegate_image):
        begun = time.monotonic()
        try:
            name = get()
        except NoImageError as error:
            print(error, file=sys.stderr)
            return 1
        megabytes = engine().images.get(name).attrs["Size"] / 1e6
        print(f"{name}: {megabytes:.0f} MB, ready after {time.monotonic() - begun:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
