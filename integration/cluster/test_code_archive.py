"""A job runs the code of its submit: edits of the files while it runs change nothing.

Method: a pipeline marks each record with the version of its module, of a helper module next to it,
of a module that is imported late, and of a data file. The files are edited while the job runs, and
processes of the job are killed. The marks show which files the next attempt used. Only the next
submit uses the edited files.
"""

from __future__ import annotations

import json
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from integration.support import running
from integration.support.resource_usage import kind_of
from integration.support.session_cluster import Processes, tidegate
from integration.support.user_project import Folder, Run
from tidegate.drivers.kafka.embedded import EmbeddedKafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]

JOB = """
from collections.abc import Iterable
from pathlib import Path

import helper

import msgspec

from tidegate import Context, Json, KafkaSink, KafkaSource, KeyedProcess, Pipeline, ValueState


class Order(msgspec.Struct, frozen=True):
    customer: str
    amount: int


class Mark(msgspec.Struct, frozen=True):
    customer: str
    total: int
    module: str
    helper: str
    lazily: str
    data: str


MODULE = "old"


class Marking(KeyedProcess[str, Order, Mark]):
    total = ValueState(int, default=0)

    def open(self) -> None:
        import later

        self.lazily = later.MARK
        self.data = Path(__file__).with_name("marks.txt").read_text()

    def process(self, order: Order, ctx: Context[str]) -> Iterable[Mark]:
        self.total.value += order.amount
        yield Mark(ctx.key, self.total.value, MODULE, helper.MARK, self.lazily, self.data)


class Marks(Pipeline, name="{job}"):
    orders = KafkaSource("{orders}", value=Json(Order))
    totals = KafkaSink("{totals}", value=Json(Mark), record_key=lambda mark: mark.customer)

    def define(self) -> None:
        by_customer = self.orders.key_by(lambda order: order.customer)
        by_customer.process(Marking(), uid="marking").to(self.totals)
"""
MARKS = ("module", "helper", "lazily", "data")
REFERENCE = "job:Marks"


def make(path: Path, bootstrap: str) -> Folder:
    folder = Folder.make(path, bootstrap, JOB, partitions=2)
    folder.write("helper.py", 'MARK = "old"\n')
    folder.write("later.py", 'MARK = "old"\n')
    folder.write("marks.txt", "old")
    return folder


def edit(folder: Folder, old: str, new: str) -> None:
    """Edit every file of the pipeline, like a user who works on the next version."""
    folder.edit("job.py", f'MODULE = "{old}"', f'MODULE = "{new}"')
    folder.edit("helper.py", old, new)
    folder.edit("later.py", old, new)
    folder.edit("marks.txt", old, new)


def marked(folder: Folder) -> list[str]:
    """Return for each record the version of the files, in the order of the orders.

    If the files of a record have several versions, these are joined with `+`.
    """
    found = [json.loads(message.value() or b"") for message in folder.read("totals")]
    found.sort(key=lambda mark: mark["total"])  # the customers take turns
    return ["+".join(sorted({each[mark] for mark in MARKS})) for each in found]


def read_all_of(folder: Folder, run: Run, count: int) -> None:
    run.until(lambda: len(folder.read("totals")) >= count, f"at {count} records", 90.0)


@contextmanager
def with_thirty_orders_read(folder: Folder, reference: str = REFERENCE) -> Iterator[Run]:
    """Yield a run of two slots that has read thirty orders and waits for more."""
    folder.orders(30)
    with folder.started("-p", "2", reference=reference, bounded=False) as run:
        read_all_of(folder, run, 30)
        yield run


def kill(run: Run, role: str) -> None:
    """Kill the JobMaster, or all slots."""
    victims = run.slots() if role == "slot" else jobmasters(run)
    assert victims, role
    assert running.kill(victims), f"{role}: {victims} ended by themselves"


def jobmasters(run: Run) -> list[int]:
    below = psutil.Process(run.process.pid).children(recursive=True)
    return [each.pid for each in below if kind_of(each) == "jobmaster"]


@pytest.mark.slow
def test_edits_of_pipeline_files_change_a_running_job_only_at_the_next_run(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    folder = make(tmp_path, kafka.bootstrap)
    with with_thirty_orders_read(folder) as run:
        edit(folder, "old", "new")
        for number, role in enumerate(("slot", "jobmaster"), start=1):
            kill(run, role)
            folder.orders(30, first=30 * number)
            read_all_of(folder, run, 30 * (number + 1))
        # A half-finished edit would end the job if any process read it.
        folder.edit("job.py", "class Marks(", "class Marks((")
        (tmp_path / "helper.py").unlink()
        kill(run, "slot")
        folder.orders(30, first=90)
        read_all_of(folder, run, 120)
        outcome = run.stop()
        assert outcome.code == 0, outcome.err
    assert marked(folder) == ["old"] * 120
    folder.assert_exact(120)

    folder.edit("job.py", "class Marks((", "class Marks(")
    folder.write("helper.py", 'MARK = "new"\n')
    folder.orders(30, first=120)
    again = folder.run("-p", "2", reference=REFERENCE)
    assert again.code == 0, again.err
    assert marked(folder)[120:] == ["new"] * 30
    folder.assert_exact(150)


@pytest.mark.slow
def test_files_left_out_of_the_code_archive_are_listed_and_not_imported(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    folder = make(tmp_path, kafka.bootstrap)
    (tmp_path / ".secret").write_text("hidden")
    (tmp_path / "big.csv").write_bytes(b"x" * 200_000)
    folder.orders(3)
    config = {"job.max_code_size": "100 KiB"}
    outcome = folder.run(reference=REFERENCE, config=config)
    assert outcome.code == 0, outcome.err
    (listed,) = [line for line in outcome.err.splitlines() if "not stored with the code" in line]
    assert ".secret (hidden)" in listed
    assert "big.csv (200000 bytes: too large for job.max_code_size)" in listed

    outside = tmp_path.with_name(f"{tmp_path.name}-outside")
    outside.mkdir()
    (tmp_path / "helper.py").rename(outside / "helper.py")
    (tmp_path / "helper.py").symlink_to(outside / "helper.py")
    refused = folder.run(reference=REFERENCE)
    assert refused.code == 2, refused.err
    assert "The module 'helper' is imported through" in refused.err


@pytest.mark.slow
def test_a_code_archive_that_is_damaged_in_the_storage_is_named(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    folder = make(tmp_path, kafka.bootstrap)
    with with_thirty_orders_read(folder) as run:
        stored = tmp_path / ".tidegate" / "checkpoints" / folder.job / "submissions"
        (archive,) = stored.glob("*/*.zip")
        archive.write_bytes(archive.read_bytes()[:-1])
        kill(run, "jobmaster")
        outcome = run.wait()
    assert outcome.code == 1, outcome.err  # 1 and not 2, because the job has run before
    assert f"{archive.relative_to(stored.parent.parent)} in the checkpoint storage, is damaged" in (
        outcome.err
    )


def test_code_archive_has_modules_that_only_a_slot_imports(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    """The submit does not import the helper. A slot imports it late, in an attempt after an
    edit.
    """
    folder = make(tmp_path, kafka.bootstrap)
    (tmp_path / "flows").mkdir()
    (tmp_path / "flows" / "__init__.py").touch()
    (tmp_path / "job.py").rename(tmp_path / "flows" / "job.py")
    (tmp_path / "marks.txt").rename(tmp_path / "flows" / "marks.txt")
    (tmp_path / "later.py").unlink()
    (tmp_path / "later").mkdir()
    folder.write("later/__init__.py", "from later.mark import MARK\n")
    folder.write("later/mark.py", 'MARK = "old"\n')
    folder.write("server.key", "not code")
    folder.write("flows/secrets.yaml", "password: not code")
    with with_thirty_orders_read(folder, "flows.job:Marks") as run:
        folder.edit("later/mark.py", "old", "new")
        kill(run, "slot")
        folder.orders(30, first=30)
        read_all_of(folder, run, 60)
        outcome = run.stop()
    assert outcome.code == 0, outcome.err
    assert marked(folder) == ["old"] * 60
    folder.assert_exact(60)
    (archive,) = tmp_path.glob(".tidegate/checkpoints/*/submissions/*/*.zip")
    with zipfile.ZipFile(archive) as stored:
        names = set(stored.namelist())
    assert {"helper.py", "later/__init__.py", "later/mark.py"} < names
    assert not {"server.key", "flows/secrets.yaml"} & names
    assert "flows/secrets.yaml (may hold a secret)" in outcome.err


@pytest.mark.slow
def test_session_cluster_runs_the_submitted_code_without_the_users_folder(
    tmp_path: Path,
) -> None:
    """The servers run in another folder, and the user's folder lacks a module at the restart."""
    servers, work = tmp_path / "servers", tmp_path / "work"
    servers.mkdir()
    work.mkdir()
    with Processes(servers) as cluster:
        folder = make(work, cluster.bootstrap)
        folder.orders(30)
        at = ("--jobmanager", cluster.jobmanager)
        words = ("--kafka", cluster.bootstrap, "-p", "2", "-c", "checkpoint.interval=300ms")
        done = tidegate("submit", REFERENCE, *at, *words, folder=work)
        assert done.returncode == 0, done.stderr

        def until(count: int) -> None:
            end_s = time.monotonic() + 120
            while len(folder.read("totals")) < count:
                assert time.monotonic() < end_s, cluster.tail()
                time.sleep(0.2)

        until(30)
        edit(folder, "old", "new")
        (work / "helper.py").unlink()
        for number, name in enumerate(("taskmanager1", "jobmanager"), start=1):
            cluster.kill(name)
            cluster.start_again(name)
            folder.orders(30, first=30 * number)
            until(30 * (number + 1))
        stopped = tidegate("stop", folder.job, *at)
        assert stopped.returncode == 0, stopped.stderr
        assert marked(folder) == ["old"] * 90
        folder.write("helper.py", 'MARK = "new"\n')
        folder.orders(30, first=90)
        done = tidegate("submit", REFERENCE, *at, *words, folder=work)
        assert done.returncode == 0, done.stderr
        until(120)
        assert tidegate("stop", folder.job, *at).returncode == 0
        assert marked(folder)[90:] == ["new"] * 30
        folder.assert_exact(120)
