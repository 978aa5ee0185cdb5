"""`tidegate txn` for integration tests: run it, read its answer, leave a transaction open for it.

The command runs in the test's own process, because a new process would take seconds to import its
clients. It runs through `main` of the console script, so tests see the exit codes and errors that
users see.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Producer

from integration.support.brokers import TIMEOUT_S
from tidegate.cli import main as command


class Answer(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.out)
        return found


Txn = Callable[..., Answer]
"""A function that runs the command: its words, and `kafka=` with the brokers."""
TIMEOUT_MS = 900_000
"""The timeout of transactions, in ms: the maximum that brokers allow by default."""


def in_folder(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Txn:
    """Return a function that runs `tidegate txn` in this process and in a given folder."""
    monkeypatch.chdir(folder)

    def run(*words: str, kafka: str) -> Answer:
        monkeypatch.setattr(sys, "argv", ["tidegate", "txn", *words, "--kafka", kafka])
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                command.main()
                code = 0
            except SystemExit as end:
                code = int(end.code or 0)
        return Answer(code, out.getvalue(), err.getvalue())

    return run


def opened(bootstrap: str, name: str, topic: str, *, partition: int = 0) -> Producer:
    """Make a producer with one record in an open transaction."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": name,
            "transaction.timeout.ms": TIMEOUT_MS,
            "log_level": 0,
        }
    )
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    producer.produce(topic, b"open", partition=partition)
    assert producer.flush(TIMEOUT_S) == 0
    return producer


def normalised(text: str, bootstrap: str) -> str:
    """Replace the parts of a text that differ from run to run."""
    text = text.replace(bootstrap, "HOST:PORT")
    text = re.sub(r"127\.0\.0\.1:\d+", "HOST:PORT", text)
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", "TIME", text)
    text = re.sub(r"\b\d+ (?:d|h|min|s)(?: \d+ (?:d|h|min|s))?\b", "AGE", text)
    text = re.sub(r"producer \d+, epoch", "producer ID, epoch", text)
    text = re.sub(r"its producer \d+ is", "its producer ID is", text)
    text = re.sub(r"\t\d+/0\t", "\tID/0\t", text)
    text = re.sub(r"(?m)^(producer +)\d+", r"\1ID", text)
    return re.sub(r"-[0-9a-f]{8}\b", "", text)


def partition(answer: Answer) -> dict[str, Any]:
    (found,) = answer.json["partitions"]
    assert isinstance(found, dict)
    return found
