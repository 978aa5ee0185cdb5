"""Checks of the arguments of sources, sinks and steps, made when they are declared.

Type checkers check most arguments already. These checks are for users without a type checker, and
for rules that types cannot express. Every error is a PipelineError that begins with the file and
line of the declaration and names the remedy.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Final, Literal, TypedDict, get_args

from tidegate.errors import PipelineError

RESERVED_PROPERTIES: Final = {
    "bootstrap.servers": "a job has one cluster: set kafka.bootstrap_servers",
    "metadata.broker.list": "a job has one cluster: set kafka.bootstrap_servers",
    "transactional.id": "the sink makes its own; they are how recovery finds its transactions",
    "transaction.timeout.ms": "it is computed from the checkpoint settings",
    "enable.idempotence": "the sink's guarantee decides it",
    "enable.auto.commit": "offsets live in checkpoints",
    "auto.offset.reset": "starting_offsets= says where a source begins",
    "group.id": "it is tidegate.<job>.<source>",
    "enable.auto.offset.store": "offsets live in checkpoints",
    "enable.partition.eof": "the run decides whether it needs the ends of partitions",
    "isolation.level": "a source reads what is committed, and nothing else",
    "max.poll.interval.ms": "a source is in no group that could expel it, and may wait for long",
    "acks": "what a checkpoint names is on all replicas in sync, whatever the guarantee",
    "request.required.acks": "it is acks, and those are all",
    "message.timeout.ms": "it is the transaction's timeout, or 5 minutes without transactions",
    "delivery.timeout.ms": "it is message.timeout.ms, the transaction's timeout or 5 minutes",
    "delivery.report.only.error": "a report for every record would cost more than the record",
    "max.in.flight.requests.per.connection": "more than one loses records where leaders move",
    "max.in.flight": "it is max.in.flight.requests.per.connection, and that is one",
}
"""librdkafka settings that the framework sets itself, each with the reason or the alternative."""

RENAMED: Final = {
    "start": "starting_offsets",
    "kafka": "properties",
    "dead_letters": "dead_letter_topic",
    "key_by": "record_key",
}
"""Keywords of earlier versions, and their present names."""

OnError = Literal["fail", "skip", "dead_letter"]


class ErrorOptions(TypedDict, total=False):
    """Keywords that say what a step does with records that it cannot process."""

    on_error: OnError
    dead_letter_topic: str


_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
"""Kafka's own rule for topic names. Kafka also refuses "." and ".."."""


def check_topic(where: str, topic: object) -> None:
    """Raise PipelineError if Kafka allows no topic with that name."""
    if not isinstance(topic, str) or _TOPIC.fullmatch(topic) is None or topic in {".", ".."}:
        raise PipelineError(
            f"{where}: {topic!r} is no name of a topic: Kafka takes letters, digits, dots, "
            "underscores and hyphens, 249 at most."
        )


def is_starting_offsets(start: object) -> bool:
    """Check that the value has a form that `starting_offsets=` accepts."""
    if isinstance(start, Mapping):
        return all(type(number) is int for pair in start.items() for number in pair)
    return type(start) is int or start in ("earliest", "latest", "committed")


def refuse_unknown(where: str, given: Iterable[str], known: Collection[str]) -> None:
    """Raise PipelineError for an unknown keyword.

    Only type checkers check the keywords of a TypedDict; Python does not.
    """
    for keyword in given:
        if keyword not in known:
            near = difflib.get_close_matches(keyword, known, n=1)
            hint = f"did you mean {near[0]}=?" if near else f"there are {', '.join(sorted(known))}"
            if RENAMED.get(keyword) in known:
                hint = f"its name is {RENAMED[keyword]}= now"
            elif keyword in {"key", "tombstones"}:
                hint = "write KafkaSource.records(...), whose records have their keys"
            raise PipelineError(f"{where} has no keyword {keyword!r}; {hint}")


def error_policy(where: str, location: str, options: ErrorOptions) -> OnError:
    """Return the error policy of a step, a key_by or a sink; PipelineError for wrong keywords."""
    refuse_unknown(where, options, ErrorOptions.__optional_keys__)
    on_error = options.get("on_error", "fail")
    check_choice(where, "on_error", on_error, get_args(OnError))
    if (on_error == "dead_letter") != (options.get("dead_letter_topic") is not None):
        raise PipelineError(
            f"{where}: on_error='dead_letter' and dead_letter_topic='topic' are given together "
            "or not at all."
        )
    if on_error == "dead_letter":
        check_topic(location, options["dead_letter_topic"])
    return on_error


def policy_options(on_error: OnError) -> dict[str, object]:
    """Return the entry for a policy in the graph's fingerprint; empty for the default."""
    return {} if on_error == "fail" else {"on_error": on_error}


def check_choice(where: str, keyword: str, given: object, allowed: tuple[str, ...]) -> None:
    """Raise PipelineError if a value is not among those allowed."""
    if given not in allowed:
        names = ", ".join(repr(name) for name in allowed)
        raise PipelineError(f"{where}: {keyword}={given!r} must be one of {names}.")
