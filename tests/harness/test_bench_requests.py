"""The parts of the bench that count requests, and that compare numbers of slots."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from integration.bench.broker_requests import RequestLog, Requests, idle_table, workload_table
from integration.bench.commits import Span
from integration.bench.cost import Run
from integration.bench.process_tree import Sample, Usage
from integration.bench.scaling import Throughput, table, throughput


def line(api: str, **request: object) -> str:
    """A line of the log of a broker, as its request logger writes it."""
    answered = {"requestHeader": {"requestApiKeyName": api}, "request": request}
    text = f"Completed request:{json.dumps(answered)}"
    return f"812 [handler-0] DEBUG kafka.request.logger - {text}\n"


def batches(*sizes: int) -> dict[str, object]:
    """A request to produce with a batch of each size."""
    parts = [{"index": number, "recordsSizeInBytes": size} for number, size in enumerate(sizes)]
    return {"topicData": [{"name": "out", "partitionData": parts}]}


def test_log_gives_the_requests_since_the_last_look_and_leaves_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(line("FETCH"))
    log = RequestLog(path)
    torn = line("END_TXN")
    with path.open("a") as file:
        file.write("900 [main] WARN kafka - slow\n" + line("FETCH"))
        file.write(line("PRODUCE", **batches(1000, 3000)) + torn[:20])
        file.flush()
        found = log.taken()
        assert dict(found.count) == {"FETCH": 1, "PRODUCE": 1}
        assert (found.batches, found.kb_a_batch) == (2, 2.0)
        file.write(torn[20:])
    assert dict(log.taken().count) == {"END_TXN": 1}
    assert log.taken().count.total() == 0


def requests(**count: int) -> Requests:
    found = Requests()
    found.count.update(count)
    return found


def test_tables_have_a_row_for_each_api_and_their_sum() -> None:
    loop, job = requests(FETCH=4, PRODUCE=2), requests(FETCH=6, END_TXN=2)
    made = workload_table({"a": loop, "b": job}, 2_000_000)
    rows = {name: rest for name, *rest in made.rows}
    assert rows["FETCH"] == ["2", "3"]
    assert rows["END_TXN"] == ["0", "1"]
    assert rows["all requests"] == ["3", "4"]
    assert rows["kB a batch"] == ["0.0", "0.0"]
    idle = {name: rest for name, *rest in idle_table({"a": loop}, 4.0).rows}
    assert idle == {"FETCH": ["1.0"], "PRODUCE": ["0.5"], "all requests": ["1.5"]}


def run(*, records: int, first_s: float, last_s: float) -> Run:
    usage = Usage()
    usage.samples += [Sample(0.0, 0.0, 0.0), Sample(10.0, 15.0, 5.0)]
    return Run(usage, span=Span(first_s, last_s, records))


def test_throughput_is_that_between_the_first_and_the_last_commit() -> None:
    found = throughput(run(records=4_000, first_s=2.0, last_s=4.0))
    assert found.records_per_s == 2_000
    with pytest.raises(RuntimeError, match="Give more records"):
        throughput(run(records=0, first_s=2.0, last_s=2.0))


def test_table_compares_two_slots_with_one() -> None:
    found = table({1: [Throughput(100.0, 1.0, 0.2)], 2: [Throughput(150.0, 1.6, 0.3)]})
    assert [list(row) for row in found.rows] == [
        ["1", "100", "", "", "1.00", "0.20"],
        ["2", "150", "1.50", "1.7", "1.60", "0.30"],
    ]
