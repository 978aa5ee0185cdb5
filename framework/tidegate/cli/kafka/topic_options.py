"""Options that the commands for topics share: the topic, and the Kafka cluster."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.terminal.options import parse_pairs

if TYPE_CHECKING:
    from tidegate.config import KafkaSettings as Settings

TopicArgument = Annotated[str, typer.Argument(help="The topic.")]
Brokers = Annotated[
    str | None,
    typer.Option("--kafka", help="Brokers, HOST:PORT,...; else kafka.bootstrap_servers."),
]
KafkaSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--config", "-c", help="A setting: kafka.properties.sasl.username=me. Repeatable."
    ),
]


def kafka_settings(kafka: str | None, config: list[str] | None) -> Settings:
    """Return the settings of the Kafka cluster, with those of the command line.

    Raise ConfigError for a wrong setting.
    """
    from tidegate.config_load import load

    given: dict[str, object] = {
        **parse_pairs(config, "--config", "Example: -c kafka.properties.security.protocol=SSL")
    }
    if kafka is not None:
        given["kafka.bootstrap_servers"] = kafka
    return load(environment=dict(os.environ), command_line=given).kafka
