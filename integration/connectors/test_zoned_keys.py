"""Keys that are datetimes with a time zone, in the repeated hour of a clock change, on a real
broker.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from integration.support.user_project import Folder
from tidegate.drivers.kafka.embedded import EmbeddedKafka

pytestmark = [pytest.mark.slow, pytest.mark.kafka, pytest.mark.timeout(300)]

SUMS = """
from collections.abc import Iterable
from datetime import datetime
from zoneinfo import ZoneInfo

import msgspec

from tidegate import Context, Json, KafkaSink, KafkaSource, KeyedProcess, Pipeline, ValueState


class Reading(msgspec.Struct, frozen=True):
    at: datetime
    amount: int


class Total(msgspec.Struct, frozen=True):
    at: datetime
    total: int


def local_time(reading: Reading) -> datetime:
    return reading.at.astimezone(ZoneInfo("Europe/Berlin"))


class Sums(KeyedProcess[datetime, Reading, Total]):
    total = ValueState(int, default=0)

    def process(self, reading: Reading, ctx: Context[datetime]) -> Iterable[Total]:
        self.total.value += reading.amount
        yield Total(ctx.key, self.total.value)


class Totals(Pipeline, name="{job}"):
    readings = KafkaSource("{readings}", value=Json(Reading))
    totals = KafkaSink("{totals}", value=Json(Total))

    def define(self) -> None:
        self.readings.key_by(local_time).process(Sums(), uid="sums").to(self.totals)
"""
INSTANTS = ["2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z"]
"""Two instants with the same local time in Berlin, 2:30."""


def test_datetime_keys_of_a_repeated_hour_have_separate_totals(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    folder = Folder.make(tmp_path, kafka.bootstrap, SUMS, topics=("readings", "totals"))
    expected: list[tuple[str, int]] = []
    for parallelism in ("2", "1"):
        for amount, at in enumerate(INSTANTS * 2, start=1):
            record = json.dumps({"at": at, "amount": amount}).encode()
            folder.send("readings", [(None, record)])
            before = max((total for instant, total in expected if instant == at), default=0)
            expected.append((at, before + amount))
        outcome = folder.run("-p", parallelism)
        assert outcome.code == 0, outcome.err
    values = [json.loads(message.value() or b"") for message in folder.read("totals")]
    found = [(value["at"].replace("+00:00", "Z"), value["total"]) for value in values]
    for at in INSTANTS:
        assert [one for one in found if one[0] == at] == [one for one in expected if one[0] == at]
    assert len(found) == len(expected)
