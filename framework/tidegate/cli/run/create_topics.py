"""`tidegate run --create-topics`: creates the topics of a pipeline that do not exist, for
development.

Topics that exist are not changed and not checked here: the checks of the submit follow. The option
may have a number of partitions (`--create-topics=8`) or stand alone, which the option parser of the
command line does not know. So `RunCommand` completes it before the parser sees it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperCommand

from tidegate.message_text import counted

if TYPE_CHECKING:
    from tidegate.config import Config
    from tidegate.graph.stream_graph import StreamGraph

OPTION: Final = "--create-topics"
DEFAULT: Final = "default"
PARTITIONS: Final = 4
"""The least number of partitions of a topic by default. The parallelism is at least the default,
so that no subtask is idle, and a development job can be rescaled to it.
"""

CreateTopics = Annotated[
    str | None,
    typer.Option(
        OPTION,
        metavar="[=N]",
        help="Create topics of the pipeline that do not exist, with N partitions, else as many as "
        f"subtasks and {PARTITIONS} at least. For development.",
    ),
]


class RunCommand(TyperCommand):
    """The command `run`, in which `--create-topics` needs no number."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments, with the default number added."""
        completed = [f"{OPTION}={DEFAULT}" if each == OPTION else each for each in args]
        return super().parse_args(ctx, completed)


def partitions_of(given: str | None, parallelism: int) -> int | None:
    """Return the number of partitions of new topics, or None if none shall be created.

    ConfigError if the text is not a positive number.
    """
    if given is None:
        return None
    if given == DEFAULT:
        return max(PARTITIONS, parallelism)
    if not given.isdecimal() or int(given) == 0:
        from tidegate.errors import ConfigError

        raise ConfigError(f"{OPTION}={given} is not a number of partitions, as in {OPTION}=8.")
    return int(given)


def create_missing_topics(graph: StreamGraph, config: Config, partitions: int) -> list[str]:
    """Create the topics of sources, sinks and dead letters that do not exist. Return their names.

    Raise RefusedError if Kafka does not allow it or does not answer: no job runs yet that could
    wait for the end of an outage.
    """
    from tidegate.api.connectors.kafka_names import kafka_nodes, topic_of
    from tidegate.drivers.kafka.topic_admin import KafkaTopicAdmin
    from tidegate.errors import ExternalError, RefusedError

    admin = KafkaTopicAdmin(config.kafka.client_settings())
    try:
        topics = (topic_of(config, node) for node in kafka_nodes(graph))
        return admin.create_missing(topics, partitions)
    except ExternalError as error:
        raise RefusedError(str(error)) from error
    finally:
        admin.close()


def print_created(topics: list[str], partitions: int) -> None:
    """Say on standard error which topics were created."""
    for topic in topics:
        print(f"created topic {topic} with {counted(partitions, 'partition')}", file=sys.stderr)
