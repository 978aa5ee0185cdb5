"""`tidegate txn`: shows the transactions of a Kafka cluster, of any producer: which are open, which
hold readers back, and how to end one.

The commands work with any Kafka cluster (3.0 or later). For the ids of tidegate's jobs they say
more than for others. Each command parses its arguments, and `session` asks the brokers and
prints. Only `abort` changes anything, and it asks for confirmation first.
"""

from __future__ import annotations

from typing import Annotated

import typer

KAFKA = Annotated[
    str | None, typer.Option(help="Brokers, HOST:PORT,...; else kafka.bootstrap_servers.")
]
CONFIG = Annotated[
    list[str] | None,
    typer.Option(
        "--config", "-c", help="A setting: kafka.properties.sasl.username=me. Repeatable."
    ),
]
STORAGE = Annotated[
    str | None,
    typer.Option(help="Checkpoint storage of tidegate's jobs; else checkpoint.dir."),
]
AS_JSON = Annotated[bool, typer.Option("--json", help="For scripts: one JSON value.")]
MAX_TIMEOUT = Annotated[
    str, typer.Option(help="Younger ones are not taken to hang: your transaction.max.timeout.ms.")
]

app = typer.Typer(
    help="""Transactions of a Kafka cluster: what is open, what holds readers back, how to end it.

    tidegate txn why-stuck orders --kafka localhost:9092

    tidegate txn list --kafka localhost:9092 --older-than 5min

    tidegate txn abort order-service-3 --kafka localhost:9092

    Brokers and security settings come from tidegate.toml ([kafka], [kafka.properties]), the
    environment or -c, as for `tidegate run`. Exit code: 0 answered, 1 brokers did not answer (all
    that is asked), 2 refused.
    """,
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command(name="list")
def list_(
    *,
    prefix: Annotated[str, typer.Option(help="Only ids that begin so.")] = "",
    job: Annotated[str | None, typer.Option(help="Only those of this tidegate job.")] = None,
    older_than: Annotated[
        str, typer.Option(help='Only those that began so long ago: "5 min".')
    ] = "0s",
    topic: Annotated[
        str | None, typer.Option(help="Only those that write there: TOPIC or TOPIC:PARTITION.")
    ] = None,
    broker: Annotated[
        int | None,
        typer.Option(help="Only those that it coordinates; --hanging: on partitions it leads."),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Also ids that have nothing open now.")
    ] = False,
    hanging: Annotated[
        bool, typer.Option("--hanging", help="Instead: open on a partition without a coordinator.")
    ] = False,
    max_transaction_timeout: MAX_TIMEOUT = "15min",
    kafka: KAFKA = None,
    config: CONFIG = None,
    as_json: AS_JSON = False,
) -> None:
    """List transactions that are open: ongoing, or prepared and waiting for their end's markers.

    --hanging lists what `kafka-transactions.sh find-hanging` lists: transactions that are open on
    a partition and that no coordinator will ever end. It asks the leaders of all partitions, or of
    those of --topic or --broker.

    Example: tidegate txn list --kafka localhost:9092 --prefix order-service- --older-than 5min
    """
    from tidegate.txn.session import Session, duration_ms, topic_selector

    with Session(kafka, config) as session:
        if hanging:
            complete = session.list_hanging(
                topic_selector=topic_selector(topic),
                broker=broker,
                max_timeout_ms=duration_ms(max_transaction_timeout, "--max-transaction-timeout"),
                as_json=as_json,
            )
        else:
            complete = session.list_open(
                prefix=prefix,
                job=job,
                older_than_ms=duration_ms(older_than, "--older-than"),
                topic_selector=topic_selector(topic),
                broker=broker,
                everything=everything,
                as_json=as_json,
            )
    raise typer.Exit(0 if complete else 1)


@app.command()
def show(
    transactional_id: Annotated[str, typer.Argument(help="The transactional id.")],
    *,
    storage: STORAGE = None,
    kafka: KAFKA = None,
    config: CONFIG = None,
    as_json: AS_JSON = False,
) -> None:
    """Show everything of one transactional id, and whether its tidegate job's journal lists it.

    Example: tidegate txn show order-service-3 --kafka localhost:9092
    """
    from tidegate.txn.session import Session

    with Session(kafka, config, storage) as session:
        session.show(transactional_id, as_json=as_json)


@app.command()
def abort(
    transactional_id: Annotated[
        str | None, typer.Argument(help="The transactional id; or give a partition and an offset.")
    ] = None,
    *,
    topic: Annotated[
        str | None, typer.Option(help="Of a hanging transaction, with the next two.")
    ] = None,
    partition: Annotated[int | None, typer.Option(help="Its partition.")] = None,
    start_offset: Annotated[int | None, typer.Option(help="Where it begins.")] = None,
    max_transaction_timeout: MAX_TIMEOUT = "15min",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    accept_data_loss: Annotated[
        bool,
        typer.Option(
            "--accept-data-loss",
            help="Abort also a transaction that a checkpoint lists, or that may be committed. Its "
            "records are then lost.",
        ),
    ] = False,
    storage: STORAGE = None,
    kafka: KAFKA = None,
    config: CONFIG = None,
    as_json: AS_JSON = False,
) -> None:
    """Abort an open transaction and lock its producer out, so that readers continue behind it.

    The command refuses an id of a tidegate job if the job's journal lists it, may still list it, or
    cannot be read. Run the job instead: it ends its transactions itself.

    A hanging transaction (list --hanging, why-stuck) has no coordinator. Name it by --topic,
    --partition and --start-offset. The command ends it by a marker in the partition.

    Example: tidegate txn abort order-service-3 --kafka localhost:9092 --yes

    Example: tidegate txn abort --topic orders --partition 0 --start-offset 1234
    """
    from tidegate.errors import ConfigError
    from tidegate.stream_elements import TopicPartition
    from tidegate.txn.session import Session, duration_ms

    with Session(kafka, config, storage) as session:
        if transactional_id is not None and topic is None:
            session.abort(
                transactional_id, yes=yes, accept_data_loss=accept_data_loss, as_json=as_json
            )
        elif transactional_id is None and None not in {topic, partition, start_offset}:
            session.abort_hanging(
                TopicPartition(str(topic), int(partition or 0)),
                int(start_offset or 0),
                max_timeout_ms=duration_ms(max_transaction_timeout, "--max-transaction-timeout"),
                yes=yes,
                accept_data_loss=accept_data_loss,
                as_json=as_json,
            )
        else:
            raise ConfigError(
                "Give either a transactional id, or --topic, --partition and --start-offset of a "
                "hanging transaction. Example: tidegate txn abort order-service-3"
            )


@app.command()
def why_stuck(
    topic: Annotated[str, typer.Argument(metavar="TOPIC[:PARTITION]")],
    *,
    max_transaction_timeout: MAX_TIMEOUT = "15min",
    kafka: KAFKA = None,
    config: CONFIG = None,
    as_json: AS_JSON = False,
) -> None:
    """Say which transaction holds back `read_committed` readers of a topic, and what to do.

    Example: tidegate txn why-stuck orders:3 --kafka localhost:9092
    """
    from tidegate.txn.session import Session, duration_ms, topic_selector

    with Session(kafka, config) as session:
        complete = session.why_stuck(
            topic_selector(topic),
            max_timeout_ms=duration_ms(max_transaction_timeout, "--max-transaction-timeout"),
            as_json=as_json,
        )
    raise typer.Exit(0 if complete else 1)
