"""The work of `tidegate txn` after its arguments are parsed: connect, ask, print, confirm, abort.

It is separate from `command.py`, so that help does not import what this module needs. The requests
are in `txn/transactions.py`, and the conclusions in `commit/diagnosis.py`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import typer
from pydantic import TypeAdapter, ValidationError

from tidegate.commit.diagnosis import (
    OPEN,
    AbortOutcome,
    JournalStatus,
    journal_status,
    select_transactions,
)
from tidegate.commit.journal.reading import read_journal
from tidegate.commit.journal.state import JournalState
from tidegate.commit.transactional_ids import parse_transactional_id
from tidegate.config import DurationMs
from tidegate.config_load import load
from tidegate.controlplane.journal.effect_runner import run_read_only
from tidegate.drivers.clock import SystemClock
from tidegate.drivers.kafka.inspection import KafkaTransactionInspector
from tidegate.drivers.storage import open_store
from tidegate.errors import (
    ConfigError,
    CorruptCheckpointError,
    KafkaError,
    KafkaNotAuthorisedError,
    NotAllowedError,
    RefusedError,
    StorageError,
)
from tidegate.ids import TransactionalId
from tidegate.message_text import counted
from tidegate.ports.inspection import Transaction, TransactionInspector
from tidegate.ports.kafka import TransactionState
from tidegate.storage_location import locate
from tidegate.stream_elements import TopicPartition
from tidegate.terminal.options import parse_pairs
from tidegate.txn import output
from tidegate.txn import text as texts
from tidegate.txn import transactions as txn_client

EXAMPLE = "Example: tidegate txn list -c kafka.properties.security.protocol=SSL"


class TopicSelector(NamedTuple):
    """A topic or one of its partitions. Without a topic it means all partitions of the cluster."""

    topic: str | None
    partition: int | None


def topic_selector(text: str | None) -> TopicSelector:
    """Parse TOPIC or TOPIC:PARTITION. Raise ConfigError for a text of another form."""
    if text is None:
        return TopicSelector(None, None)
    topic, colon, number = text.partition(":")
    if not topic or (colon and not number.isdecimal()):
        raise ConfigError(f"{text!r} is not TOPIC or TOPIC:PARTITION. Example: orders:3")
    return TopicSelector(topic, int(number) if colon else None)


def duration_ms(text: str, option: str) -> int:
    """Return a duration with a unit in milliseconds. Raise ConfigError if it cannot be parsed."""
    adapter: TypeAdapter[int] = TypeAdapter(DurationMs)
    try:
        return adapter.validate_python(text)
    except ValidationError as error:
        why = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise ConfigError(f"{option}: {why}. Example: {option} 5min") from None


class Session:
    """The run of one command: a connection to the configured cluster that the block closes.

    Credentials or rights that Kafka refuses are an error of the user here, because no job runs that
    could wait for them.
    """

    def __init__(
        self, kafka: str | None, config: list[str] | None, storage: str | None = None
    ) -> None:
        given = parse_pairs(config, "--config", EXAMPLE)
        if kafka is not None:
            given["kafka.bootstrap_servers"] = kafka
        if storage is not None:
            given["checkpoint.dir"] = storage
        settings = load(environment=dict(os.environ), command_line=given)
        self._storage = settings.checkpoint.dir
        self._clock = SystemClock()
        self._progress = output.progress()
        self._inspector: TransactionInspector = KafkaTransactionInspector(
            settings.kafka.client_settings()
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._inspector.close()
        if isinstance(error, KafkaNotAuthorisedError):
            raise NotAllowedError(str(error)) from None

    def list_open(
        self,
        *,
        prefix: str,
        job: str | None,
        older_than_ms: int,
        topic_selector: TopicSelector,
        broker: int | None,
        everything: bool,
        as_json: bool,
    ) -> bool:
        """Print the selected transactions. Return whether every coordinator answered."""
        topic_partitions = None
        if topic_selector.topic is not None:
            topic_partitions = txn_client.leaders_of(
                self._inspector, topic_selector.topic, topic_selector.partition
            ).keys()
        self._require_broker(broker)
        listed = self._inspector.find_transactions(
            prefix=prefix, states=() if everything else OPEN, progress=self._progress
        )
        now_ms = self._clock.now_ms()
        found = [
            each
            for each in select_transactions(
                listed.transactions,
                job=job,
                topic_partitions=topic_partitions,
                older_than_ms=older_than_ms,
                now_ms=now_ms,
            )
            if broker in {None, each.coordinator}
        ]
        if as_json:
            rows = [output.as_json(each, now_ms) for each in found]
            self._print_json({"transactions": rows}, listed.unreachable, now_ms)
        elif found:
            output.print_table(output.COLUMNS, [output.row(each, now_ms) for each in found])
        else:
            what = "transactional id" if everything else "open transaction"
            print(f"tidegate: No {what} matches.", file=sys.stderr)
        output.print_unreachable(listed.unreachable)
        return not listed.unreachable

    def list_hanging(
        self,
        *,
        topic_selector: TopicSelector,
        broker: int | None,
        max_timeout_ms: int,
        as_json: bool,
    ) -> bool:
        """Print the hanging transactions. Return whether all brokers answered."""
        self._require_broker(broker)
        leaders = txn_client.leaders_of(
            self._inspector, topic_selector.topic, topic_selector.partition
        )
        if broker is not None:
            leaders = {
                topic_partition: id_ for topic_partition, id_ in leaders.items() if id_ == broker
            }
        found, unreachable = txn_client.hanging(
            self._inspector,
            leaders,
            self._clock,
            max_timeout_ms=max_timeout_ms,
            progress=self._progress,
        )
        now_ms = self._clock.now_ms()
        if as_json:
            rows = [output.open_transaction_json(each, now_ms) for each in found]
            self._print_json({"hanging": rows}, unreachable, now_ms)
        elif found:
            output.print_table(output.HANGING_COLUMNS, [output.hanging_row(each) for each in found])
        else:
            seen = counted(len(leaders), "partition")
            print(f"tidegate: No hanging transaction is on {seen}.", file=sys.stderr)
        output.print_unreachable(unreachable)
        return not unreachable

    def show(self, transactional_id: str, *, as_json: bool) -> None:
        """Print everything that is known about one transactional id.

        Raise RefusedError if no coordinator knows the id.
        """
        found = self._described(transactional_id)
        how = journal_status(found.transactional_id, self._journal(found.transactional_id))
        leaders: dict[TopicPartition, int] = {}
        for topic in sorted({topic_partition.topic for topic_partition in found.partitions}):
            leaders |= self._inspector.partitions(topic)
        end_offsets = self._inspector.end_offsets(
            {o: leaders[o] for o in found.partitions if o in leaders}
        )
        now_ms = self._clock.now_ms()
        if as_json:
            body = output.as_json(found, now_ms)
            for row, topic_partition in zip(body["partitions"], found.partitions, strict=True):
                row["last_stable_offset"] = (
                    end_offsets[topic_partition].stable if topic_partition in end_offsets else None
                )
                row["high_watermark"] = (
                    end_offsets[topic_partition].end if topic_partition in end_offsets else None
                )
            self._print_json({"transaction": body, "journal": how.value}, (), now_ms)
            return
        for line in output.details(found, self._inspector.brokers(), end_offsets, how, now_ms):
            print(line)

    def why_stuck(
        self, topic_selector: TopicSelector, *, max_timeout_ms: int, as_json: bool
    ) -> bool:
        """Print the transactions that hold readers back. Return whether all brokers answered."""
        leaders = txn_client.leaders_of(
            self._inspector, topic_selector.topic, topic_selector.partition
        )
        report = txn_client.why_stuck(
            self._inspector,
            leaders,
            self._clock,
            max_timeout_ms=max_timeout_ms,
            progress=self._progress,
        )
        if as_json:
            now_ms = self._clock.now_ms()
            rows = [output.partition_json(each, now_ms) for each in report.partitions]
            self._print_json({"partitions": rows}, report.unreachable, now_ms)
        else:
            for each in report.partitions:
                print("\n".join(texts.describe_partition(each)))
        output.print_unreachable(report.unreachable)
        return not report.unreachable

    def abort(
        self, transactional_id: str, *, yes: bool, accept_data_loss: bool, as_json: bool
    ) -> None:
        """Abort a transaction that its coordinator knows.

        Raise RefusedError if the transaction is not ongoing, if the journal forbids the abort and
        `accept_data_loss` is not set, or if the user does not confirm.
        """
        found = self._described(transactional_id)
        if found.state is not TransactionState.ONGOING:
            raise RefusedError(texts.nothing_to_abort(found))
        how = journal_status(found.transactional_id, self._journal(found.transactional_id))
        refusal = texts.abort_refusal(how, found)
        if refusal is not None and not accept_data_loss:
            raise RefusedError(refusal)
        now_ms = self._clock.now_ms()
        if not yes:
            for line in output.details(found, {}, None, how, now_ms):
                print(line, file=sys.stderr)
        lost = " and lose what a checkpoint promises" if how is JournalStatus.PENDING_COMMIT else ""
        _confirm(f"Abort transaction {transactional_id}{lost}, and lock its producer out?", yes=yes)
        outcome, after = txn_client.abort(self._inspector, found, self._clock)
        if as_json:
            body = None if after is None else output.as_json(after, now_ms)
            self._print_json({"outcome": outcome.value, "transaction": body}, (), now_ms)
        else:
            print(texts.outcome(outcome, found, after))
        if outcome is not AbortOutcome.ABORTED:
            raise typer.Exit(1)

    def abort_hanging(
        self,
        topic_partition: TopicPartition,
        start_offset: int,
        *,
        max_timeout_ms: int,
        yes: bool,
        accept_data_loss: bool,
        as_json: bool,
    ) -> None:
        """End a hanging transaction on its partition, with an abort marker.

        Raise RefusedError if it may be part of a committed one and `accept_data_loss` is not set,
        or if the user does not confirm. Raise KafkaError if it is still open after the marker.
        """
        found = txn_client.find_hanging(
            self._inspector,
            topic_partition,
            start_offset,
            self._clock,
            max_timeout_ms=max_timeout_ms,
        )
        if found.committed and not accept_data_loss:
            raise RefusedError(texts.perhaps_committed(found))
        where = f"{topic_partition.topic}-{topic_partition.partition}"
        _confirm(
            f"End the transaction of producer {found.producer.producer_id} at offset "
            f"{start_offset} of {where}, last record {texts.age(found.age_ms)} ago, by an abort "
            "marker? No coordinator that you may see knows it.",
            yes=yes,
        )
        if not txn_client.end_hanging(self._inspector, found, self._clock):
            raise KafkaError(
                f"The leader of {where} took the abort marker, and the transaction at offset "
                f"{start_offset} is open still. Ask again: tidegate txn why-stuck "
                f"{topic_partition.topic}:{topic_partition.partition}"
            )
        if as_json:
            now_ms = self._clock.now_ms()
            body = {"outcome": "aborted", "hanging": output.open_transaction_json(found, now_ms)}
            self._print_json(body, (), now_ms)
        else:
            print(f"{where}: the transaction at offset {start_offset} is aborted.")

    def _described(self, transactional_id: str) -> Transaction:
        found = self._inspector.describe(TransactionalId(transactional_id))
        if found is None:
            raise RefusedError(
                f"No coordinator knows the transactional id {transactional_id!r}. It was never "
                "used, or not for transactional.id.expiration.ms (7 days); tidegate txn list --all "
                "shows those there are."
            )
        return found

    def _journal(self, transactional_id: TransactionalId) -> JournalState | None:
        """Return the journal of the id's job; None for other ids and for an unreadable journal."""
        parts = parse_transactional_id(transactional_id)
        if parts is None:
            return None
        try:
            store = open_store(locate(self._storage, Path.cwd()))
            return run_read_only(store, read_journal(parts.job))
        except (StorageError, CorruptCheckpointError) as error:
            print(f"tidegate: The journal cannot be read: {error}", file=sys.stderr)
            return None

    def _require_broker(self, broker: int | None) -> None:
        if broker is None:
            return
        brokers = self._inspector.brokers()
        if broker not in brokers:
            known = ", ".join(str(each) for each in sorted(brokers))
            raise RefusedError(f"No broker {broker} is up in this cluster; those are: {known}.")

    def _print_json(self, body: dict[str, Any], unreachable: tuple[str, ...], now_ms: int) -> None:
        output.print_json(
            {
                "cluster_id": self._inspector.cluster_id(),
                "queried_at_ms": now_ms,
                **body,
                "unreachable": list(unreachable),
            }
        )


def _confirm(question: str, *, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise RefusedError(
            "Nothing was aborted: no terminal to ask for confirmation. Use --yes in scripts."
        )
    if not typer.confirm(question, err=True):
        raise RefusedError("Nothing was aborted.")
