"""`tidegate diff` on the checkpoint of a real job: its verdict is that of the run that follows.

The outputs are golden files. For each edit of the pipeline, a run of the same code follows. It
continues where `diff` has accepted the code, and refuses it for the same reason where `diff` has
refused it.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from integration.support.brokers import TIMEOUT_S, create_topic
from integration.support.user_project import Folder, assert_golden, paragraph
from tidegate.drivers.kafka.embedded import EmbeddedKafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(180)]

STATE = "    total = ValueState(int, default=0)\n"
ADD = "self.total.value += order.amount"

Edits = Sequence[tuple[str, str]]

ACCEPTED: dict[str, Edits] = {
    "nothing": (),
    "state-added": ((STATE, STATE + "    count = ValueState(int, default=0)\n"),),
    "state-renamed": (
        (STATE, '    amount = ValueState(int, default=0, renamed_from="total")\n'),
        (ADD, "self.amount.value += order.amount"),
        ("self.total.value)", "self.amount.value)"),
    ),
    "state-dropped": (
        (STATE, '    dropped_states = ("total",)\n    other = ValueState(int, default=0)\n'),
        (ADD, "self.other.value += order.amount"),
        ("self.total.value)", "self.other.value)"),
    ),
    "state-of-a-wider-type": ((STATE, STATE.replace("int,", "int | None,")),),
    "step-and-sink-option": (
        ("self.orders.key_by", "self.orders.filter(lambda order: order.amount > 0).key_by"),
        ("record_key=", 'guarantee="at_least_once", record_key='),
    ),
}

REFUSED: dict[str, Edits] = {
    "uid-changed": (('uid="running"', 'uid="totals-per-customer"'),),
    "state-removed": (
        (STATE, "    other = ValueState(int, default=0)\n"),
        (ADD, "self.other.value += order.amount"),
        ("self.total.value)", "self.other.value)"),
    ),
    "state-of-another-type": ((STATE, STATE.replace("int, default=0", 'str, default=""')),),
    "key-of-another-type": (
        ("lambda order: order.customer)", "lambda order: order.amount)"),
        ("KeyedProcess[str,", "KeyedProcess[int,"),
        ("Context[str]", "Context[int]"),
        ("Total(ctx.key", "Total(str(ctx.key)"),
    ),
    "source-renamed": (("    orders = Kafka", "    sales = Kafka"), ("self.orders", "self.sales")),
}


@pytest.fixture(scope="module")
def finished(kafka: EmbeddedKafka, tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """A folder whose job has run to its end, without a drain."""
    folder = Folder.make(tmp_path_factory.mktemp("finished"), kafka.bootstrap)
    folder.orders(30)
    assert folder.run("--no-drain").code == 0
    return folder


@pytest.fixture
def stopped(finished: Folder, tmp_path: Path) -> Folder:
    """A copy of that folder. So each test restores the same checkpoint."""
    folder = Folder(tmp_path / "copy", finished.bootstrap, finished.job, finished.topics)
    shutil.copytree(finished.path, folder.path)
    return folder


def edited(folder: Folder, edits: Edits) -> None:
    for old, new in edits:
        folder.edit("job.py", old, new)


def shown(folder: Folder, text: str) -> str:
    """Return the output without what differs from run to run."""
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "TIME", folder.normalised(text).rstrip())
    return re.sub(r"([Cc]heckpoint) \d+-\d+", r"\1 ID", text)


@pytest.mark.slow
@pytest.mark.parametrize("edit", ACCEPTED)
def test_accepted_change_is_described_and_the_code_can_be_built(stopped: Folder, edit: str) -> None:
    edited(stopped, ACCEPTED[edit])
    done = stopped.command("diff", "job:Totals")
    assert done.code == 0, done.err
    assert_golden(f"diff-accepted-{edit}", shown(stopped, done.out))


@pytest.mark.slow
@pytest.mark.parametrize("edit", REFUSED)
def test_refused_change_is_described_with_its_reason(stopped: Folder, edit: str) -> None:
    edited(stopped, REFUSED[edit])
    done = stopped.command("diff", "job:Totals")
    assert done.code == 2, done.err
    assert_golden(f"diff-refused-{edit}", shown(stopped, done.out))


def test_reason_of_a_refusal_is_the_reason_of_the_run(stopped: Folder) -> None:
    edited(stopped, REFUSED["state-of-another-type"])
    found = json.loads(stopped.command("diff", "job:Totals", "--json").out)
    assert not found["accepted"]
    run = stopped.run()
    assert run.code == 2
    assert found["refusals"][0] in paragraph(run.err)


def test_code_that_diff_accepts_continues_from_the_checkpoint(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    folder = Folder.make(tmp_path, kafka.bootstrap)
    folder.orders(9)
    assert folder.run("--no-drain").code == 0
    edited(folder, ACCEPTED["state-renamed"])
    assert folder.command("diff", "job:Totals").code == 0
    folder.orders(9, first=9)
    assert folder.run("--no-drain").code == 0
    folder.assert_exact(18)


@pytest.mark.slow
def test_recreated_topic_is_found_only_with_the_brokers(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    folder = Folder.make(tmp_path, kafka.bootstrap)
    folder.orders(9)
    assert folder.run("--no-drain").code == 0
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    topic = folder.topics["orders"]
    admin.delete_topics([topic], operation_timeout=TIMEOUT_S)[topic].result(TIMEOUT_S)
    deleted = folder.command("diff", "job:Totals", "--kafka", kafka.bootstrap)
    assert deleted.code == 2
    assert "it was deleted" in deleted.out
    create_topic(kafka.bootstrap, topic, partitions=1)
    assert folder.command("diff", "job:Totals").code == 0
    recreated = folder.command("diff", "job:Totals", "--kafka", kafka.bootstrap)
    assert recreated.code == 2
    assert "deleted and created again" in recreated.out


@pytest.mark.slow
def test_job_without_a_checkpoint_has_nothing_to_compare(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    folder = Folder.make(tmp_path, kafka.bootstrap)
    done = folder.command("diff", "job:Totals")
    assert done.code == 0
    assert_golden("diff-no-checkpoint", shown(folder, done.out))


@pytest.mark.slow
@pytest.mark.parametrize("id_", ["1-2", "7-7"])
def test_id_of_no_checkpoint_is_a_mistake_of_the_user(
    kafka: EmbeddedKafka, tmp_path: Path, id_: str
) -> None:
    folder = Folder.make(tmp_path, kafka.bootstrap)
    done = folder.command("diff", "job:Totals", "--restore", id_)
    assert (done.code, done.out) == (2, "")
    assert "It has none: tidegate run takes the first one." in done.err


@pytest.mark.slow
def test_id_of_no_checkpoint_is_answered_with_those_that_exist(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    """The journal of the job lists an expired checkpoint, which the answer does not name."""
    folder = Folder.make(tmp_path, kafka.bootstrap)
    with folder.started(bounded=False, config={"checkpoint.num_retained": "2"}) as run:
        run.until(lambda: len(folder.published()) > 2, "three checkpoints")
        assert run.stop().code == 0
    expired, *_, last = folder.published()
    listed = json.loads(folder.command("checkpoints", folder.job, "--json").out)["checkpoints"]
    kept = [row["id"] for row in listed]
    assert last in kept
    assert expired not in kept
    for id_ in ("7-7", expired):
        done = folder.command("diff", "job:Totals", "--restore", id_)
        assert (done.code, done.out) == (2, "")
        assert f"no checkpoint '{id_}' in the checkpoint storage" in done.err
        assert f"It has {', '.join(kept)}: give one of these, or latest." in done.err
    accepted = folder.command("diff", "job:Totals", "--restore", last)
    assert accepted.code == 0
    assert accepted.out.endswith(f"a run continues from checkpoint {last}.\n")
    wrong = folder.command("diff", "job:Totals", "--restore", "first")
    assert wrong.code == 2
    assert "--restore 'first' is neither latest nor none" in wrong.err
    without = folder.command("diff", "job:Totals", "--restore", "none")
    assert without.out == f"{folder.job}: with --restore none a run starts without state.\n"
