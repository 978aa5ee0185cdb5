"""Which pipelines agree, with what they read and how their outputs are compared.

Every pipeline of `pipelines/` is found here by itself. What it reads, and what is to be known of
its outputs, stands in `CASES`, in one entry: a pipeline without one fails the suite and says so.

A sink that is written exactly once is compared record by record, those of one group in their order;
the group is the record's key unless the entry gives a finer one. A sink that is written at least
once is compared as a set, one without a guarantee as a set too, of which a run with kills may lack
some. What depends on how partitions interleave is listed under `interleaves`, with the reason and
with what can be compared all the same.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from confluent_kafka import Message

import pipelines
from integration.agreement.inputs import (
    Dataset,
    accounts,
    clicks,
    events,
    orders,
    payments,
)
from integration.agreement.shapes import Plain, Policies, Regions, ThreeLevels, Unions
from pipelines.click_dedup import ClickDedup
from pipelines.order_totals import OrderTotals
from pipelines.payments_enriched import PaymentsEnriched
from tidegate import Pipeline

Of = Callable[[Message], object]


@dataclass(frozen=True, slots=True)
class Interleaves:
    """An output of which only a part is the same in each run."""

    reason: str
    compared: tuple[Of, ...]
    """What is compared of the records, each as a multiset."""


@dataclass(frozen=True, slots=True)
class Case:
    """A pipeline with an input."""

    name: str
    pipeline: type[Pipeline]
    inputs: Mapping[str, Dataset]
    """By source."""
    groups: Mapping[str, Of] = field(default_factory=dict)
    """By sink: finer than the record's key, where records of one key come by several ways."""
    interleaves: Mapping[str, Interleaves] = field(default_factory=dict)
    """By sink."""
    state_interleaves: Mapping[str, str] = field(default_factory=dict)
    """By the uid of a step: why its final state is not compared."""
    silent: frozenset[str] = frozenset()
    """Sinks that get nothing from this input."""
    timestamps: frozenset[str] = frozenset()
    """Sinks whose records have the timestamps that user code gave them."""


def in_value(*fields: str) -> Of:
    """These fields of a JSON record."""

    def of(message: Message) -> object:
        value: dict[str, Any] = msgspec.json.decode(message.value() or b"{}")
        return tuple(value.get(name) for name in fields)

    return of


def place(message: Message) -> object:
    """Where a dead letter was read, which is a group of its own: letters of one partition come by
    several subtasks."""
    wanted = {"tidegate.source.topic", "tidegate.source.partition", "tidegate.source.offset"}
    headers: list[tuple[str, Any]] = list(message.headers() or [])  # type: ignore[arg-type]
    return tuple(value for name, value in headers if name in wanted)


def payment_id(message: Message) -> object:
    """The account, which is the key, and the payment's id, which stands first in the value."""
    value = message.value() or b""
    return message.key(), value[1 : 1 + (value[0] >> 1)]


CASES: Final = (
    Case("order-totals", OrderTotals, {"orders": Dataset(orders)}),
    Case(
        "click-dedup",
        ClickDedup,
        {"clicks": Dataset(clicks)},
        # The sinks have the user as key, the step user and page.
        groups={
            "unique": in_value("user", "page"),
            "repeated": in_value("user", "page"),
            "clicks-dead-letters": place,
        },
    ),
    Case(
        # With one version of each account it is the same whether a payment waited for it.
        "payments-enriched",
        PaymentsEnriched,
        {"payments": Dataset(payments, size=2_700), "accounts": Dataset(accounts(1), size=30)},
        groups={"unmatched": payment_id},  # has no keys, so its records are in any partition
    ),
    Case(
        "payments-enriched-versions",
        PaymentsEnriched,
        {"payments": Dataset(payments, size=700), "accounts": Dataset(accounts(8), size=240)},
        interleaves={
            "enriched": Interleaves(
                "accounts and payments are two topics: which version of its account a payment"
                " meets depends on which partition is read first",
                (payment_id,),
            )
        },
        silent=frozenset({"unmatched"}),
    ),
    Case(
        "plain",
        Plain,
        {"events": Dataset(events("e", tombstones=True))},
        timestamps=frozenset({"copies"}),
    ),
    Case("three-levels", ThreeLevels, {"events": Dataset(events("e"))}),
    Case(
        "unions",
        Unions,
        {
            "left": Dataset(events("left"), size=600),
            "right": Dataset(events("right"), size=500),
            "later": Dataset(events("later"), size=300),
        },
        groups={"counted-key-dead-letters": place},
    ),
    Case(
        "policies",
        Policies,
        {"events": Dataset(events("e", bad=True))},
        groups={
            "events-dead-letters": place,
            "refusing-dead-letters": place,
            "refusing-key-dead-letters": place,
            "results-dead-letters": place,
        },
    ),
    Case(
        "regions",
        Regions,
        {"events": Dataset(events("e"))},
        interleaves={
            "regions": Interleaves(
                "a region's customers are in several partitions and subtasks: each event is"
                " counted once, and with which count is chance",
                (in_value("name", "key", "amount", "group"), in_value("group", "count")),
            )
        },
    ),
)


def discovered() -> list[type[Pipeline]]:
    """Every pipeline of `pipelines/`."""
    found = []
    for module in pkgutil.walk_packages(pipelines.__path__, "pipelines."):
        for each in vars(importlib.import_module(module.name)).values():
            is_pipeline = isinstance(each, type) and issubclass(each, Pipeline)
            if is_pipeline and each.pipeline_name and each.__module__ == module.name:
                found.append(each)
    return found


def case_of(name: str) -> Case:
    """The case of that name."""
    (found,) = [case for case in CASES if case.name == name]
    return found
