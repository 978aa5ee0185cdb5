"""The pipelines that must agree, with their inputs and the comparison of their outputs.

This module finds every pipeline of `pipelines/` by itself. One entry of `CASES` gives its input,
and the facts about its outputs. A pipeline without an entry fails the suite, and the failure names
it.

The comparison of a sink depends on its guarantee:

- An exactly-once sink is compared record by record, and the records of one group in their order.
  The group is the record's key, unless the entry gives a finer one.
- An at-least-once sink is compared as a set.
- A sink without a guarantee is compared as a set too, and a run with kills may lack some records.

Outputs that depend on how partitions interleave are listed under `interleaves`, with the reason,
and with the parts that can still be compared. A `Balance` compares what all sinks together have of
the input, which is the same in each run.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final

import msgspec
from confluent_kafka import Message

import pipelines
from integration.agreement.inputs import (
    ALL_CARD_PAYMENTS,
    ALL_CLICKS,
    ALL_SALES,
    ALL_VIEWS,
    HOUR_MS,
    LAST_HOUR_MS,
    SHOP_ORDERS,
    SHOP_PAYMENTS,
    TRADE_END_MS,
    Dataset,
    accounts,
    card_payments,
    clicks,
    events,
    orders,
    page_clicks,
    page_views,
    payments,
    sales,
    shop_orders,
    shop_payments,
    signups,
)
from integration.agreement.record_shapes import SameRecords, entries
from integration.agreement.shapes import Plain, Policies, Regions, ThreeLevels, Unions
from pipelines.card_alerts import CardAlerts
from pipelines.clean_signups import CleanSignups
from pipelines.click_dedup import ClickDedup
from pipelines.hourly_revenue import HourlyRevenue
from pipelines.order_totals import OrderTotals
from pipelines.page_report import PageReport
from pipelines.paid_orders import PaidOrders
from pipelines.payments_enriched import PaymentsEnriched
from pipelines.visits import Visits
from tidegate import Pipeline

Of = Callable[[Message], object]
Messages = Mapping[str, Sequence[Message]]
"""Records by source or by sink."""


@dataclass(frozen=True, slots=True)
class Interleaves:
    """An output of which only a part is the same in each run."""

    reason: str
    compared: tuple[Of, ...]
    """The parts of a record that are compared, each as a multiset."""


@dataclass(frozen=True, slots=True)
class Balance:
    """Parts of the input that the sinks together must have, also if the interleaving
    decides which sink has a part.
    """

    of_inputs: Callable[[Messages], Iterable[object]]
    of_outputs: Callable[[Messages], Iterable[object]]
    """Both give hashable parts, which are compared as multisets."""


@dataclass(frozen=True, slots=True)
class Case:
    """A pipeline with an input."""

    name: str
    pipeline: type[Pipeline]
    inputs: Mapping[str, Dataset]
    """Datasets by source."""
    groups: Mapping[str, Of] = field(default_factory=dict)
    """Groups by sink, finer than the record's key. They are for records of one key that arrive on
    several paths.
    """
    interleaves: Mapping[str, Interleaves] = field(default_factory=dict)
    """Outputs by sink that depend on how partitions interleave."""
    state_interleaves: Mapping[str, str] = field(default_factory=dict)
    """The reason why a step's final state is not compared, by the uid of the step."""
    silent: frozenset[str] = frozenset()
    """Sinks that get nothing from this input."""
    silent_by_chance: frozenset[str] = frozenset()
    """Sinks that some runs write nothing to. The live run writes to them."""
    balance: Balance | None = None
    """Comparison of the inputs and the outputs of each run."""
    rescales: tuple[int, int] | None = None
    """Two parallelisms. The pipeline has event time, so one run changes from one to the other in
    the middle.
    """
    timestamps: frozenset[str] = frozenset()
    """Sinks whose records have the timestamps that user code gave them."""
    text: str = ""
    """The module of a drawn pipeline, whose class is `Drawn`. Each run of it ends with a drain."""


def decoded(message: Message) -> dict[str, Any]:
    """Return a JSON record."""
    value: dict[str, Any] = msgspec.json.decode(message.value() or b"{}")
    return value


def in_value(*fields: str) -> Of:
    """Return a function that returns these fields of a JSON record."""

    def of(message: Message) -> object:
        value = decoded(message)
        return tuple(value.get(name) for name in fields)

    return of


def place(message: Message) -> object:
    """Return the topic, partition and offset at which a dead letter's record was read.

    Each dead letter is a group of its own, because the dead letters of one partition come from
    several subtasks.
    """
    wanted = {"tidegate.source.topic", "tidegate.source.partition", "tidegate.source.offset"}
    headers: list[tuple[str, Any]] = list(message.headers() or [])  # type: ignore[arg-type]
    return tuple(value for name, value in headers if name in wanted)


def payment_id(message: Message) -> object:
    """Return the account, which is the key, and the payment's id, which comes first in the
    value.
    """
    value = message.value() or b""
    return message.key(), value[1 : 1 + (value[0] >> 1)]


Hours = dict[tuple[str, int], tuple[int, int, bool]]
"""Cents, number of sales, and whether the results have the numbers 0, 1, 2 …, by shop and hour."""


def sold(sources: Messages) -> Iterable[object]:
    """Return what was sold in each hour of each shop, but for the last hour, which stays open."""
    hours = _hours({}, sources["sales"])
    return [one for one in hours.items() if one[0][1] + HOUR_MS <= LAST_HOUR_MS]


def counted_or_late(sinks: Messages) -> Iterable[object]:
    """Return the last result of each hour of each shop, with the late sales of that hour added."""
    results: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
    for message in sinks["revenue"]:
        row = decoded(message)
        results[row["shop"], row["start_ms"]].append(row)
    counted: Hours = {}
    for hour, rows in results.items():
        in_order = [row["number"] for row in rows] == list(range(len(rows)))
        counted[hour] = (rows[-1]["cents"], rows[-1]["sales"], in_order)
    return _hours(counted, sinks["late"]).items()


def _hours(begun: Hours, messages: Sequence[Message]) -> Hours:
    for message in messages:
        sale = decoded(message)
        hour = sale["shop"], sale["sold_at_ms"] // HOUR_MS * HOUR_MS
        cents, number, in_order = begun.get(hour, (0, 0, True))
        begun[hour] = cents + sale["cents"], number + 1, in_order
    return begun


GAP_MS: Final = 1_800_000
MINUTE_MS: Final = 60_000


def visits_of_clicks(sources: Messages) -> Iterable[object]:
    """Return user, beginning, end, number of clicks and first page of the visits of a batch over
    the clicks, but for those that stay open.
    """
    clicks = sorted(
        (click["user"], click["at_ms"], click["page"]) for click in map(decoded, sources["clicks"])
    )
    for user, theirs in groupby(clicks, key=lambda click: click[0]):
        visit: list[tuple[int, str]] = []
        for at_ms, page in [*((at_ms, page) for _, at_ms, page in theirs), (1 << 60, "")]:
            if visit and at_ms > visit[-1][0] + GAP_MS:
                end_ms = visit[-1][0] + GAP_MS
                if end_ms <= TRADE_END_MS:
                    yield user, visit[0][0], end_ms, len(visit), visit[0][1]
                visit = []
            visit.append((at_ms, page))


def visits_found(sinks: Messages) -> Iterable[object]:
    """Return the same of the visits that were written."""
    names = ("user", "start_ms", "end_ms", "clicks", "landing")
    return [tuple(row[name] for name in names) for row in map(decoded, sinks["visits"])]


def views_of_minutes(sources: Messages) -> Iterable[object]:
    """Return page, minute, number of views and longest load time of a batch over the views, but for
    the last minute, which stays open.
    """
    minutes: dict[tuple[str, int], list[int]] = defaultdict(list)
    for view in map(decoded, sources["views"]):
        if view["at_ms"] < TRADE_END_MS:
            minutes[view["page"], view["at_ms"] // MINUTE_MS * MINUTE_MS].append(view["load_ms"])
    return [(*minute, len(loads), max(loads)) for minute, loads in minutes.items()]


def minutes_found(sinks: Messages) -> Iterable[object]:
    """Return the same of the rows that were written."""
    names = ("page", "start_ms", "views", "max_load_ms")
    return [tuple(row[name] for name in names) for row in map(decoded, sinks["report"])]


BY_ARRIVAL: Final = Interleaves("which sales are late depends on which partition is read first", ())

CASES: Final = (
    Case("order-totals", OrderTotals, {"orders": Dataset(orders)}),
    Case(
        "click-dedup",
        ClickDedup,
        {"clicks": Dataset(clicks)},
        # The key of the sinks is the user, the key of the step is user and page.
        groups={
            "unique": in_value("user", "page"),
            "repeated": in_value("user", "page"),
            "clicks-dead-letters": place,
        },
    ),
    Case(
        # Each account has one version. So the output is the same, whether a payment waited or not.
        "payments-enriched",
        PaymentsEnriched,
        {"payments": Dataset(payments, size=2_700), "accounts": Dataset(accounts(1), size=30)},
        groups={"unmatched": payment_id},  # without keys, its records are in any partition
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
        "paid-orders",
        PaidOrders,
        {
            "orders": Dataset(shop_orders, size=SHOP_ORDERS + 3),
            "payments": Dataset(shop_payments, size=SHOP_PAYMENTS + 3),
        },
        rescales=(2, 3),
    ),
    Case(
        "hourly-revenue",
        HourlyRevenue,
        {"sales": Dataset(sales(), size=ALL_SALES)},
        silent=frozenset({"late"}),
        rescales=(3, 2),
        balance=Balance(sold, counted_or_late),
    ),
    Case(
        "hourly-revenue-late",
        HourlyRevenue,
        {"sales": Dataset(sales(beyond_bound=True), size=ALL_SALES)},
        interleaves={"revenue": BY_ARRIVAL, "late": BY_ARRIVAL},
        silent_by_chance=frozenset({"late"}),
        rescales=(2, 4),
        balance=Balance(sold, counted_or_late),
    ),
    Case(
        "visits",
        Visits,
        {"clicks": Dataset(page_clicks, size=ALL_CLICKS)},
        rescales=(2, 3),
        balance=Balance(visits_of_clicks, visits_found),
    ),
    Case(
        "card-alerts",
        CardAlerts,
        {"payments": Dataset(card_payments, size=ALL_CARD_PAYMENTS)},
        rescales=(2, 3),
    ),
    Case(
        "page-report",
        PageReport,
        {"views": Dataset(page_views, size=ALL_VIEWS)},
        rescales=(3, 2),
        balance=Balance(views_of_minutes, minutes_found),
    ),
    Case(
        "clean-signups",
        CleanSignups,
        {"raw": Dataset(signups)},
        groups={"raw-dead-letters": place, "map-1-dead-letters": place},
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
        "same-records",
        SameRecords,
        {"events": Dataset(events("e"), size=240), "entries": Dataset(entries, size=120)},
        rescales=(1, 3),
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
    """Return every pipeline of `pipelines/`."""
    found = []
    for module in pkgutil.walk_packages(pipelines.__path__, "pipelines."):
        for each in vars(importlib.import_module(module.name)).values():
            is_pipeline = isinstance(each, type) and issubclass(each, Pipeline)
            if is_pipeline and each.pipeline_name and each.__module__ == module.name:
                found.append(each)
    return found


def case_of(name: str) -> Case:
    """Return the case with this name."""
    (found,) = [case for case in CASES if case.name == name]
    return found
