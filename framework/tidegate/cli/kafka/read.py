"""`tidegate kafka read`: prints the records of a topic.

This module parses. `topic_reader` asks Kafka and prints, and `record_text` says how a record looks.
"""

from __future__ import annotations

from typing import Annotated

import typer

from tidegate.cli.kafka.topic_options import Brokers, KafkaSettings, TopicArgument

Format = "auto, json, text, hex, avro or confluent-avro"


From = Annotated[
    str | None,
    typer.Option(
        "--from",
        help="beginning, end, an offset, -N for the last N, a time (2026-11-27T18:00Z), or an age "
        "(10min). Default: beginning; with --follow: end.",
    ),
]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Wait for new records, until Ctrl-C.")]
Limit = Annotated[
    int | None, typer.Option("--limit", "-n", min=1, help="End after this number of records.")
]
Partitions = Annotated[
    list[int] | None, typer.Option("--partition", min=0, help="Only this partition. Repeatable.")
]
Uncommitted = Annotated[
    bool,
    typer.Option(
        "--uncommitted", help="Also records of open and aborted transactions (read_uncommitted)."
    ),
]
ValueFormat = Annotated[str, typer.Option("--value", help=f"Format of values: {Format}.")]
KeyFormat = Annotated[str, typer.Option("--key", help=f"Format of keys: {Format}.")]
SchemaFile = Annotated[str | None, typer.Option(help="Avro schema of them: a file FILE.avsc.")]
Pipeline = Annotated[
    str | None,
    typer.Option(
        help="MODULE:CLASS: decode with the formats that its source or sink of the topic has."
    ),
]
Values = Annotated[bool, typer.Option("--values", help="Print only the values, one per line.")]
JsonLines = Annotated[bool, typer.Option("--json", help="For scripts: one JSON object per record.")]


def read(
    topic: TopicArgument,
    from_: From = None,
    follow: Follow = False,
    limit: Limit = None,
    partition: Partitions = None,
    uncommitted: Uncommitted = False,
    value: ValueFormat = "auto",
    value_schema: SchemaFile = None,
    key: KeyFormat = "auto",
    key_schema: SchemaFile = None,
    pipeline: Pipeline = None,
    values: Values = False,
    kafka: Brokers = None,
    config: KafkaSettings = None,
    as_json: JsonLines = False,
) -> None:
    """Print the records of a topic: partition:offset, time, key, value and headers.

    It reads up to the present end and stops. Each partition is read in order. A read_committed
    reader does not see records of open transactions; the command says how many offsets they hide.
    A record that cannot be decoded is printed in base64. Exit code: 0 read, 1 a record could not
    be decoded or Kafka did not answer, 2 refused, 130 ended by Ctrl-C.

    Example: tidegate kafka read order-totals --from "10 min" --limit 20 --json
    """
    from tidegate.cli.kafka.topic_reader import Formats, print_records

    formats = Formats(value, value_schema, key, key_schema, pipeline)
    code = print_records(
        topic,
        formats,
        start=from_,
        follow=follow,
        limit=limit,
        partitions=partition,
        uncommitted=uncommitted,
        layout="json" if as_json else "values" if values else "lines",
        kafka=kafka,
        config=config,
    )
    raise typer.Exit(code)
