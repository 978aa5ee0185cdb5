"""Operations of steps on records, on a real broker: a run behaves like a test without Kafka."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from integration.support.user_project import Folder
from tidegate.drivers.kafka.embedded import EmbeddedKafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]

BRANCHES = """
from collections.abc import Iterable
from dataclasses import dataclass

from tidegate import Context, Json, KafkaSink, KafkaSource, KeyedProcess, Pipeline, ValueState


@dataclass
class Order:
    customer: str
    amount: int


def doubled(order: Order) -> Order:
    order.amount *= 2
    return order


def twice(order: Order) -> Iterable[Order]:
    return [order, order]


class Adds(KeyedProcess[str, Order, Order]):
    count = ValueState(int, default=0)

    def process(self, order: Order, ctx: Context[str]) -> Iterable[Order]:
        self.count.value += 1
        order.amount += 10
        yield order


class Branches(Pipeline, name="{job}"):
    orders = KafkaSource("{orders}", value=Json(Order))
    doubles = KafkaSink("{doubles}", value=Json(Order))
    plain = KafkaSink("{plain}", value=Json(Order), record_key=lambda order: order.customer)
    added = KafkaSink("{added}", value=Json(Order))

    def define(self) -> None:
        self.orders.map(doubled).to(self.doubles)
        self.orders.to(self.plain)
        repeated = self.orders.flat_map(twice)
        by_customer = repeated.key_by(lambda order: order.customer)
        by_customer.process(Adds(), uid="adds").to(self.added)
"""


@pytest.mark.slow
@pytest.mark.parametrize("parallelism", [1, 2])
def test_branches_do_not_see_each_others_changes_of_records(
    kafka: EmbeddedKafka, tmp_path: Path, parallelism: int
) -> None:
    topics = ("orders", "doubles", "plain", "added")
    folder = Folder.make(tmp_path, kafka.bootstrap, BRANCHES, topics=topics, partitions=2)
    folder.orders(60)
    outcome = folder.run("-p", str(parallelism), reference="job:Branches")
    assert outcome.code == 0, outcome.err
    amounts = {
        topic: [json.loads(message.value() or b"")["amount"] for message in folder.read(topic)]
        for topic in topics[1:]
    }
    assert amounts == {"doubles": [2] * 60, "plain": [1] * 60, "added": [11] * 120}


MODELS = """
from collections.abc import Iterable

from pydantic import BaseModel

from tidegate import Context, Json, KafkaSink, KafkaSource, KeyedProcess, Pipeline, ValueState


class Order(BaseModel):
    customer: str
    amount: int


class Counts(KeyedProcess[str, Order, Order]):
    count = ValueState(int, default=0)

    def process(self, order: Order, ctx: Context[str]) -> Iterable[Order]:
        self.count.value += 1
        yield order


def passed(order: Order) -> Order:
    return order


class Models(Pipeline, name="{job}"):
    orders = KafkaSource("{orders}", value=Json(Order))
    written = KafkaSink("{written}", value=Json(Order))

    def define(self) -> None:
        by_customer = self.orders.map(passed).key_by(lambda order: order.customer)
        by_customer.process(Counts(), uid="counts").to(self.written)
"""

MISTAKES = {
    "process returns the record": (
        ("        yield order\n", "        return order\n"),
        "step uid 'counts' (job.py:",
        "returned an Order, not an iterable of results",
    ),
    "process gives its fields": (
        ("        yield order\n", "        yield from order\n"),
        "step uid 'counts' (job.py:",
        "gave a tuple, and declares an Order",
    ),
    "map gives a dict": (
        ("    return order\n", "    return order.model_dump()\n"),
        "step 'map-1' (job.py:",
        "gave a dict, and declares an Order",
    ),
}


@pytest.mark.once
@pytest.mark.parametrize("parallelism", [1, 2])
@pytest.mark.parametrize("mistake", MISTAKES)
def test_result_of_a_wrong_type_is_refused_and_not_written(
    kafka: EmbeddedKafka, tmp_path: Path, mistake: str, parallelism: int
) -> None:
    topics = ("orders", "written")
    folder = Folder.make(tmp_path, kafka.bootstrap, MODELS, topics=topics)
    edit, step, what = MISTAKES[mistake]
    folder.edit("job.py", *edit)
    folder.orders(30)
    options = ("-p", str(parallelism))
    outcome = folder.run(*options, reference="job:Models", config={"restart.strategy": "none"})
    assert outcome.code == 1, outcome.err
    said = folder.normalised(outcome.err)
    assert step in said
    assert what in said
    # With two subtasks, either can be the first to process a record, also after a shuffle.
    where = "-0 at offset 0" if parallelism == 1 else "-[0-9] at offset [0-9]+"
    source = folder.normalised(folder.topics["orders"]) + where
    assert re.search(f"the record that came from {source}", said), said
    assert folder.read("written") == []
    folder.write("job.py", MODELS)
    assert folder.run(*options, reference="job:Models").code == 0
    assert len(folder.read("written")) == 30


FIELDS = """
import msgspec

from tidegate import Json, KafkaSink, KafkaSource, Pipeline


class Order(msgspec.Struct, frozen=True):
    customer: str
    amount: int


class Share(msgspec.Struct, frozen=True):
    customer: str
    amount: int
    part: float
    note: str


def share(order: Order) -> Share:
    late = order.amount > 1
    return Share(order.customer, order.amount, "half" if late else 0.5, "")


class Shares(Pipeline, name="{job}"):
    orders = KafkaSource("{orders}", value=Json(Order))
    shares = KafkaSink("{shares}", value=Json(Share))

    def define(self) -> None:
        self.orders.map(share).to(self.shares)
"""


@pytest.mark.slow
@pytest.mark.parametrize("validate", ["sample", "all"])
def test_error_names_the_wrong_field_that_fails_the_job(
    kafka: EmbeddedKafka, tmp_path: Path, validate: str
) -> None:
    text = FIELDS
    if validate == "all":
        text = FIELDS.replace("Json(Share)", 'Json(Share, validate="all")')
    topics = ("orders", "shares")
    folder = Folder.make(tmp_path, kafka.bootstrap, text, topics=topics)
    right = 0
    if validate == "all":  # here the wrong value comes after many correct ones
        right = 3000
        folder.orders(right)
    folder.send("orders", [(b"c", b'{"customer": "ann", "amount": 2}')])
    config = {"restart.strategy": "none"}
    outcome = folder.run(reference="job:Shares", config=config)
    assert outcome.code == 1, outcome.err
    said = " ".join(outcome.err.split())
    assert "gave a Share in which .part is a str, not a float, and declares a Share" in said
    assert f"{folder.topics['orders']}-0 at offset {right}." in said
    assert not any(b"half" in (message.value() or b"") for message in folder.read("shares"))


@pytest.mark.slow
def test_a_policy_leaves_out_the_records_with_a_wrong_field(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    text = FIELDS.replace("map(share)", 'map(share, on_error="skip")')
    folder = Folder.make(tmp_path, kafka.bootstrap, text, topics=("orders", "shares"))
    for first in (0, 2000):
        folder.orders(2000, first=first)
        folder.send("orders", [(b"c", b'{"customer": "ann", "amount": 2}')] * 7)
    outcome = folder.run("--json", reference="job:Shares")
    assert outcome.code == 0, outcome.err
    assert json.loads(outcome.out.splitlines()[-1])["skipped"] == 14
    written = folder.read("shares")
    assert len(written) == 4000
    assert not any(b"half" in (message.value() or b"") for message in written)
