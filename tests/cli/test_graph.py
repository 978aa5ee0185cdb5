"""`tidegate graph`: a pipeline of ten steps as text, JSON, Mermaid and SVG."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree as ET

import pytest
from typer.testing import CliRunner

from tidegate.cli.main import app
from tidegate.errors import ConfigError, PipelineError

GOLDEN = Path(__file__).parents[1] / "golden" / "messages"

PIPELINE = """
from collections.abc import Iterable

import msgspec

from tidegate import Context, Json, KafkaSink, KafkaSource, KeyedProcess, Pipeline, ValueState

print("printed while it is imported")


class Order(msgspec.Struct, frozen=True):
    customer: str
    amount: int


def customer_of(order: Order) -> str:
    return order.customer


def doubled(order: Order) -> Order:
    return order


class Running(KeyedProcess[str, Order, Order]):
    total = ValueState(int, default=0)

    def process(self, order: Order, ctx: Context[str]) -> Iterable[Order]:
        yield order


class Ten(Pipeline, name="ten"):
    web = KafkaSource(
        "web-orders",
        value=Json(Order),
        on_bad_record="dead_letter",
        dead_letter_topic="bad-orders",
    )
    shop = KafkaSource("shop-orders", value=Json(Order))
    totals = KafkaSink("totals", value=Json(Order))
    large = KafkaSink("large", value=Json(Order))
    all_orders = KafkaSink("all-orders", value=Json(Order))

    def define(self) -> None:
        both = self.web.map(doubled).union(self.shop.filter(lambda order: order.amount > 0))
        both.to(self.all_orders)
        results = both.key_by(customer_of).process(Running(), uid="running-total")
        results.filter(lambda order: order.amount > 9).to(self.large)
        results.to(self.totals)
"""


@pytest.fixture
def shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    (tmp_path / "ten_steps.py").write_text(PIPELINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def run(*options: str) -> str:
        result = CliRunner().invoke(app, ["graph", "ten_steps:Ten", *options])
        assert result.exception is None or isinstance(result.exception, SystemExit), (
            result.exception
        )
        return result.stdout

    return run


def test_text_shows_steps_inputs_topics_and_types(shown: Callable[..., str]) -> None:
    text = shown()
    assert "printed" not in text
    assert text == (GOLDEN / "graph-text.txt").read_text()


def test_mermaid_is_a_flowchart_with_dotted_dead_letters(shown: Callable[..., str]) -> None:
    assert shown("--mermaid") == (GOLDEN / "graph-mermaid.txt").read_text()


def test_topic_of_the_configuration_is_shown(shown: Callable[..., str]) -> None:
    body = json.loads(shown("--json", "-c", "sources.shop.topic=other"))
    steps = {step["id"]: step for step in body["steps"]}
    assert steps["shop"]["detail"] == "topic other"
    assert {"from": "running-total", "to": "totals", "label": "", "dead_letters": False} in body[
        "edges"
    ]


class Rectangle(NamedTuple):
    left: float
    top: float
    right: float
    bottom: float

    def overlaps(self, other: Rectangle) -> bool:
        return (
            self.left < other.right
            and other.left < self.right
            and self.top < other.bottom
            and other.top < self.bottom
        )


def rectangles(root: ET.Element) -> list[Rectangle]:
    found = []
    for group in root.iter("{http://www.w3.org/2000/svg}g"):
        (rect,) = group.iter("{http://www.w3.org/2000/svg}rect")
        x, y, width, height = (float(rect.get(key, "")) for key in ("x", "y", "width", "height"))
        found.append(Rectangle(x, y, x + width, y + height))
    return found


def points(path: str) -> list[tuple[float, float]]:
    """Return points on a path of M, C and L: of each curve, 20."""
    numbers = [
        [float(n) for n in re.findall(r"-?[\d.]+", part)]
        for part in re.findall(r"[MCL][^MCL]*", path)
    ]
    at, found = (numbers[0][0], numbers[0][1]), []
    for part in numbers[1:]:
        corners = [at, *zip(part[::2], part[1::2], strict=True)]
        for step in range(1, 20):
            rest, t = corners, step / 20
            while len(rest) > 1:
                rest = [
                    (a[0] + t * (b[0] - a[0]), a[1] + t * (b[1] - a[1]))
                    for a, b in itertools.pairwise(rest)
                ]
            found.append(rest[0])
        at = corners[-1]
    return found


def test_svg_has_boxes_that_do_not_overlap_and_arrows_that_cross_no_box(
    shown: Callable[..., str],
) -> None:
    root = ET.fromstring(shown("--svg"))
    boxes = rectangles(root)
    assert len(boxes) == 10
    assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))
    width, height = float(root.get("width", "")), float(root.get("height", ""))
    assert all(box.left >= 0 and box.right <= width and box.bottom <= height for box in boxes)
    paths = [
        path.get("d", "")
        for path in root.iter("{http://www.w3.org/2000/svg}path")
        if path.get("marker-end")
    ]
    assert len(paths) == 10
    for path in paths:
        for x, y in points(path):
            inside = [
                box
                for box in boxes
                if box.left < x < box.right and box.top + 1 < y < box.bottom - 1
            ]
            assert not inside, (path, x, y)


def test_two_forms_at_once_and_an_unknown_class_are_refused(shown: Callable[..., str]) -> None:
    result = CliRunner().invoke(app, ["graph", "ten_steps:Ten", "--svg", "--json"])
    assert isinstance(result.exception, ConfigError)
    result = CliRunner().invoke(app, ["graph", "ten_steps:Eleven"])
    assert isinstance(result.exception, PipelineError)


WINDOWS = """
from collections.abc import Iterable, Sequence

import msgspec

from tidegate import *


class Sale(msgspec.Struct, frozen=True):
    shop: str
    at_ms: int


class First(WindowProcess[str, Sale, Sale]):
    def process(self, records: Sequence[Sale], ctx: WindowContext[str]) -> Iterable[Sale]:
        yield records[0]


class Windows(Pipeline, name="windows"):
    sales = KafkaSource(
        "sales", value=Json(Sale), event_time=lambda sale: sale.at_ms, watermarks=Monotonous()
    )
    out = KafkaSink("out", value=Json(Sale))
    counts = KafkaSink("counts", value=Json(int))
    ratios = KafkaSink("ratios", value=Json(float))

    def define(self) -> None:
        keyed = self.sales.key_by(lambda sale: sale.shop)

        def count(uid, window, **options):
            windows = keyed.window(window, **options)
            windows.aggregate(Count(), uid=uid, into=lambda w, n: n).to(self.counts)

        count("a", Tumbling("1 h", offset="-8 min"), allowed_lateness="90 s")
        count("b", Sliding("1 d", "15 min", time="processing"))
        final = AfterWatermark(early=Every("10 s"), on_time="always")
        count("c", Session("1500 ms"), trigger=final)
        count("d", Session(lambda sale: "1 s"), trigger=AfterWatermark(late=EveryCount(9)))
        count("e", Calendar("day", zone="Europe/Berlin"), trigger=AfterWatermark(
            early=Every("1 min", time="event"), accumulate=False))
        count("f", Global(), trigger=Repeatedly(EveryCount(1)))
        keyed.window(Tumbling("1 h")).process(First(), uid="g").to(self.out)
        keyed.window(Tumbling("1 h")).reduce(lambda a, b: b, uid="h").to(self.out)
        sums = keyed.window(Tumbling("1 h")).aggregate(Count(), uid="i", into=lambda w, n: n)
        sums.to(self.counts)
        sums.to(self.ratios)
"""


def test_windows_are_shown_with_their_sizes_triggers_and_types(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "window_steps.py").write_text(WINDOWS)
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["graph", "window_steps.py", "--json"])
    assert result.exit_code == 0, result.output
    steps = [step for step in json.loads(result.stdout)["steps"] if step["kind"] == "window"]
    assert [(step["id"], step["detail"], step["records"]) for step in steps] == [
        ("a", "Tumbling 1 h offset 52 min, lateness 90 s: Count", "int"),
        ("b", "Sliding 1 d every 15 min of processing time: Count", "int"),
        ("c", "Session 1500 ms, early every 10 s, always on time: Count", "int"),
        ("d", "Session with a gap of each record, late at each 9 records: Count", "int"),
        (
            "e",
            "Calendar day Europe/Berlin, early every 1 min of event time, discarding: Count",
            "int",
        ),
        ("f", "Global, fires at each record: Count", "int"),
        ("g", "Tumbling 1 h: First", "Sale"),
        ("h", "Tumbling 1 h: reduce", "Sale"),
        ("i", "Tumbling 1 h: Count", ""),  # its sinks declare two types
    ]
    for form in ("--svg", "--mermaid"):
        shown = CliRunner().invoke(app, ["graph", "window_steps.py", form]).stdout
        assert "Tumbling 1 h offset 52 min, lateness 90 s: Count" in shown
