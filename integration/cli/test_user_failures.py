"""User code that raises an error: the message that the user reads, and the number of restarts."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from integration.support.user_project import Folder, Outcome, assert_golden
from tidegate.drivers.kafka.embedded import EmbeddedKafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(180)]

CHECKED = """
def checked(order):
    if order.amount > 5:
        raise ValueError(f"{order.customer} wants too much")
    return order


class Running("""

LOGIN = """
    def login(self, order: Order) -> str:
        raise ValueError(f"cannot log in with {self.password}")

"""

STEPS = {
    "process": (
        "        self.total.value +=",
        "        checked(order)\n        self.total.value +=",
    ),
    "map": ("by_customer = self.orders.", "by_customer = self.orders.map(checked, returns=Order)."),
    "filter": ("by_customer = self.orders.", "by_customer = self.orders.filter(checked)."),
    "key": ("lambda order: order.customer)\n", "lambda order: checked(order).customer)\n"),
    "sink-key": ("lambda total: total.customer)", "lambda total: total.custmer)"),
}


def make(kafka: EmbeddedKafka, path: Path, *edit: str, partitions: int = 1) -> Folder:
    folder = Folder.make(path, kafka.bootstrap, partitions=partitions)
    folder.edit("job.py", "class Running(", CHECKED.lstrip("\n"))
    folder.edit("job.py", *edit)
    folder.orders(7)
    folder.send("orders", [(b"c1", b'{"customer": "c1", "amount": 9}')])
    folder.orders(3, first=7)
    return folder


def place_of_the_bad_one(folder: Folder) -> tuple[int | None, int | None]:
    (found,) = [
        (message.partition(), message.offset())
        for message in folder.read("orders")
        if b"9" in (message.value() or b"")
    ]
    return found


def last_words(folder: Folder, outcome: Outcome) -> str:
    """Return the text after the line with the end of the job.

    Parts that depend on the version of Python are removed: marks below the lines, and suggestions
    of names.
    """
    assert outcome.code == 1, outcome.err
    lines = outcome.err.rstrip("\n").partition(" restarts\n")[2].splitlines()
    kept = [line.partition(". Did you mean")[0] for line in lines if line.strip(" ^~")]
    return folder.normalised("\n".join(kept))


@pytest.mark.once
@pytest.mark.parametrize("step", STEPS)
def test_error_of_user_code_names_the_step_and_the_record(
    kafka: EmbeddedKafka, tmp_path: Path, step: str
) -> None:
    folder = make(kafka, tmp_path, *STEPS[step])
    outcome = folder.run(config={"restart.strategy": "none"})
    assert " 0 restarts" in outcome.err
    said = outcome.err.splitlines()[-1]
    if step != "sink-key":  # that step fails at the first record
        partition, offset = place_of_the_bad_one(folder)
        assert f"{folder.topics['orders']}-{partition} at offset {offset}" in said
    assert_golden(f"user-code-{step}", last_words(folder, outcome))
    assert folder.read("totals") == []


DIGIT = "next(letter for letter in {record}.customer if letter.isdigit())"
NO_DIGIT = {
    "key": ("lambda order: order.customer)\n", "lambda order: " + DIGIT.format(record="order")),
    "sink-key": ("lambda total: total.customer)", "lambda total: " + DIGIT.format(record="total")),
}


@pytest.mark.slow
@pytest.mark.parametrize("parallelism", ["1", "2"])
@pytest.mark.parametrize("place", NO_DIGIT)
def test_a_key_function_that_raises_stop_iteration_loses_no_record(
    kafka: EmbeddedKafka, tmp_path: Path, place: str, parallelism: str
) -> None:
    folder = Folder.make(tmp_path, kafka.bootstrap)
    old, new = NO_DIGIT[place]
    end = old[old.index(")") :]
    folder.edit("job.py", old, new + end)
    folder.orders(7)
    folder.send("orders", [(b"bad", b'{"customer": "none", "amount": 9}')])
    folder.orders(3, first=7)
    outcome = folder.run("-p", parallelism, config={"restart.strategy": "none"})
    assert outcome.code == 1, outcome.err
    assert "StopIteration" in outcome.err
    assert f"{folder.topics['orders']}-0" in outcome.err
    assert folder.read("totals") == []
    folder.edit("job.py", new + ")", new + ', on_error="skip")')
    outcome = folder.run("-p", parallelism)
    assert outcome.code == 0, outcome.err
    assert len(folder.read("totals")) == 10


@pytest.mark.slow
def test_job_fails_after_the_configured_number_of_restarts(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    folder = make(kafka, tmp_path, *STEPS["process"])
    config = {
        "restart.strategy": "fixed_delay",
        "restart.attempts": "2",
        "restart.delay": "100ms",
    }
    outcome = folder.run(config=config)
    assert outcome.code == 1, outcome.err
    assert " 2 restarts" in outcome.err
    assert sum(entry["kind"] == "claim" for entry in folder.journal()) == 3
    folder.edit("job.py", "order.amount > 5", "order.amount > 50")
    assert folder.run().code == 0
    assert len(folder.read("totals")) == 11


@pytest.mark.slow
def test_error_of_user_code_after_an_exchange_names_the_source_record(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    folder = make(kafka, tmp_path, *STEPS["process"], partitions=3)
    partition, offset = place_of_the_bad_one(folder)
    outcome = folder.run("-p", "2", config={"restart.strategy": "none"})
    assert outcome.code == 1, outcome.err
    assert f"from {folder.topics['orders']}-{partition} at offset {offset}." in outcome.err


def test_a_secret_parameter_is_in_no_output_no_log_and_no_process_list(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    folder = Folder.make(tmp_path, kafka.bootstrap)
    folder.edit("job.py", "import Context,", "import Context, Param,")
    folder.edit(
        "job.py", "    orders = Kaf", "    password = Param(str, secret=True)\n    orders = Kaf"
    )
    folder.edit("job.py", "lambda order: order.customer)\n", "self.login)\n")
    folder.edit("job.py", "    def define(self)", LOGIN + "    def define(self)")
    folder.orders(3)
    secret = {"TIDEGATE_PARAMS__PASSWORD": "hush-hush"}
    config = {"restart.strategy": "fixed_delay", "restart.attempts": "3", "restart.delay": "200ms"}
    with folder.started(environment=secret, config=config) as run:
        run.until(run.slots, "with slots")
        for process in psutil.Process(run.process.pid).children(recursive=True):
            assert "hush-hush" not in " ".join(process.cmdline())
        outcome = run.wait()
    assert outcome.code == 1, outcome.err
    assert "cannot log in with ********" in outcome.err
    assert "cannot log in with ********" in folder.logs()
    assert "hush-hush" not in outcome.err + outcome.out + folder.logs()


UNREACHABLE = """
from pathlib import Path


class Running(KeyedProcess[str, Order, Total]):
    def open(self) -> None:
        with Path("{path}").open("a+b") as tries:
            tries.write(b".")
            if tries.tell() <= 2:
                raise {raised}

"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("raised", "said"),
    [
        ('ConnectionError("the database is down")', "raised ConnectionError: the database is down"),
        ("MemoryError()", "raised MemoryError"),
        ('RuntimeError("can\'t start new thread")', "can't start new thread"),
    ],
    ids=["connection", "memory", "thread"],
)
def test_job_runs_after_an_open_that_raises_has_restarted_it_twice(
    kafka: EmbeddedKafka, tmp_path: Path, raised: str, said: str
) -> None:
    """A service that is down for a second must not fail a job permanently."""
    folder = Folder.make(tmp_path, kafka.bootstrap)
    folder.edit(
        "job.py",
        "class Running(KeyedProcess[str, Order, Total]):\n",
        UNREACHABLE.format(path=tmp_path / "tries", raised=raised).lstrip("\n"),
    )
    folder.orders(10)
    outcome = folder.run()
    assert outcome.code == 0, outcome.err
    assert " 2 restarts" in outcome.err
    assert (tmp_path / "tries").read_bytes() == b"..."
    assert said in outcome.err, outcome.err
    assert "open() of step uid 'running'" in outcome.err, outcome.err
    folder.assert_exact(10)
