"""`tidegate kafka topics`: create, list, describe and delete topics by hand.

The commands work with any Kafka cluster. `drivers/kafka/topic_admin` sends the requests, and this
module parses and prints. Only `delete` destroys anything, and it asks for confirmation first.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.cli.kafka.topic_options import Brokers, KafkaSettings, TopicArgument, kafka_settings
from tidegate.message_text import counted
from tidegate.terminal import options as o

if TYPE_CHECKING:
    from tidegate.drivers.kafka.topic_admin import KafkaTopicAdmin, TopicDescription

app = typer.Typer(
    help="""Topics of a Kafka cluster: create, list, describe and delete them.

    tidegate kafka topics create orders --partitions 4 --kafka localhost:9092

    Brokers and security settings come from tidegate.toml ([kafka], [kafka.properties]), the
    environment or -c, as for `tidegate run`. Exit code: 0 done, 1 brokers did not answer,
    2 refused.
    """,
    no_args_is_help=True,
    rich_markup_mode=None,
)

Topics = Annotated[list[str], typer.Argument(help="The topic. Several are possible.")]


@app.command()
def create(
    topics: Topics,
    partitions: Annotated[
        int | None, typer.Option("--partitions", "-p", min=1, help="Else the brokers' default.")
    ] = None,
    replication_factor: Annotated[
        int | None, typer.Option(min=1, help="Replicas of each partition; else the default.")
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option("--topic-config", help="A setting of the topic: NAME=VALUE. Repeatable."),
    ] = None,
    if_missing: Annotated[
        bool, typer.Option("--if-missing", help="Keep a topic that exists as it is.")
    ] = False,
    kafka: Brokers = None,
    config: KafkaSettings = None,
    as_json: o.AsJson = False,
) -> None:
    """Create topics, and return when every partition has a leader.

    Example: tidegate kafka topics create orders -p 4 --topic-config retention.ms=86400000
    """
    from tidegate.drivers.kafka.topic_admin import BROKER_DEFAULT
    from tidegate.errors import TopicAbsentError

    settings = o.parse_pairs(
        setting, "--topic-config", "Example: --topic-config cleanup.policy=compact"
    )
    rows = []
    with _admin(kafka, config) as admin:
        for topic in topics:
            created, found = True, 0
            if if_missing:
                try:
                    created, found = False, admin.partitions(topic)
                except TopicAbsentError:
                    created = True
            if created:
                found = admin.create(
                    topic,
                    partitions=partitions or BROKER_DEFAULT,
                    replication_factor=replication_factor or BROKER_DEFAULT,
                    config=settings,
                )
            rows.append({"topic": topic, "partitions": found, "created": created})
            if not as_json:
                print(
                    f"{topic}: {'created' if created else 'exists'}, {counted(found, 'partition')}"
                )
    if as_json:
        print(json.dumps(rows))


@app.command("list")
def list_(
    prefix: Annotated[str, typer.Option(help="Only topics whose names begin so.")] = "",
    internal: Annotated[
        bool, typer.Option("--internal", help="Also the topics that Kafka uses itself.")
    ] = False,
    kafka: Brokers = None,
    config: KafkaSettings = None,
    as_json: o.AsJson = False,
) -> None:
    """List the topics, with the number of their partitions and replicas.

    Example: tidegate kafka topics list --kafka localhost:9092 --prefix orders
    """
    with _admin(kafka, config) as admin:
        found = {
            topic: counts
            for topic, counts in admin.topics(internal=internal).items()
            if topic.startswith(prefix)
        }
    if as_json:
        rows = [
            {"topic": topic, "partitions": partitions, "replicas": replicas}
            for topic, (partitions, replicas) in found.items()
        ]
        print(json.dumps(rows))
        return
    width = max(map(len, found), default=0)
    for topic, (partitions, replicas) in found.items():
        print(
            f"{topic:<{width}}  {counted(partitions, 'partition')}, {counted(replicas, 'replica')}"
        )
    if not found:
        print("no topics: tidegate kafka topics create TOPIC makes one", file=sys.stderr)


@app.command()
def describe(
    topic: TopicArgument,
    kafka: Brokers = None,
    config: KafkaSettings = None,
    as_json: o.AsJson = False,
) -> None:
    """Describe a topic: its settings, and the leader, replicas and offsets of each partition.

    Offsets behind an open transaction are counted as hidden: a `read_committed` reader does not
    see their records yet.

    Example: tidegate kafka topics describe orders --json
    """
    with _admin(kafka, config) as admin:
        facts = admin.describe(topic)
    if as_json:
        body = facts._asdict()
        body["partitions"] = [each._asdict() for each in facts.partitions]
        print(json.dumps(body))
    else:
        print(_description(facts))


@app.command()
def delete(
    topics: Topics,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    kafka: Brokers = None,
    config: KafkaSettings = None,
    as_json: o.AsJson = False,
) -> None:
    """Delete topics with all of their records, after a confirmation.

    Example: tidegate kafka topics delete orders order-totals --yes
    """
    from tidegate.errors import RefusedError

    with _admin(kafka, config) as admin:
        for topic in topics:
            admin.partitions(topic)  # a topic that does not exist is refused before any is deleted
        if not yes:
            if not sys.stdin.isatty():
                raise RefusedError(
                    "No terminal to ask for confirmation. Use --yes in scripts. Nothing is deleted."
                )
            named = ", ".join(topics)
            if not typer.confirm(f"Delete {named} with all records?", err=True):
                raise RefusedError("Nothing is deleted.")
        for topic in topics:
            admin.delete(topic)
            if not as_json:
                print(f"{topic}: deleted")
    if as_json:
        print(json.dumps([{"topic": topic, "deleted": True} for topic in topics]))


@contextmanager
def _admin(kafka: str | None, config: list[str] | None) -> Iterator[KafkaTopicAdmin]:
    from tidegate.drivers.kafka.topic_admin import KafkaTopicAdmin

    admin = KafkaTopicAdmin(kafka_settings(kafka, config).client_settings())
    try:
        yield admin
    finally:
        admin.close()


def _description(facts: TopicDescription) -> str:
    lines = [f"{facts.topic}: {counted(len(facts.partitions), 'partition')}"]
    lines += [f"  {name} = {value}" for name, value in (facts.config or {}).items()]
    if facts.config is None:
        lines.append("  its settings cannot be read without DESCRIBE_CONFIGS on the topic")
    rows = [("partition", "leader", "replicas", "in sync", "beginning", "end", "hidden")]
    rows += [
        (
            str(each.partition),
            "none" if each.leader is None else str(each.leader),
            ",".join(map(str, each.replicas)),
            ",".join(map(str, each.in_sync)),
            str(each.beginning),
            str(each.end),
            str(each.high_watermark - each.end),
        )
        for each in facts.partitions
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines += [
        "  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True))
        for row in rows
    ]
    return "\n".join(lines)
