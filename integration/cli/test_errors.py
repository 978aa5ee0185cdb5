"""Mistakes of users and set-ups, tested with the user's command on a real broker.

Each mistake gives one paragraph on stderr, which names the cause and the remedy. The exit code is
2, and no process starts. The paragraphs are kept as golden files.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from integration.support.brokers import TIMEOUT_S
from integration.support.running import in_time
from integration.support.session_cluster import TIDEGATE
from integration.support.user_project import Folder, Outcome, assert_golden, paragraph
from tidegate.drivers.kafka.embedded import EmbeddedKafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(180)]

UNREACHABLE_S_MAX = 20.0
"""The limit for the error, in seconds. The command takes nine; the rest is for a busy machine."""


def with_config(**settings: str) -> Callable[[Folder], Outcome]:
    config = {name.replace("__", "."): value for name, value in settings.items()}
    return lambda folder: folder.run(config=config)


def with_options(*options: str) -> Callable[[Folder], Outcome]:
    return lambda folder: folder.run(*options)


def with_reference(reference: str) -> Callable[[Folder], Outcome]:
    return lambda folder: folder.run(reference=reference)


def with_file(text: str) -> Callable[[Folder], Outcome]:
    def run(folder: Folder) -> Outcome:
        folder.write("tidegate.toml", text)
        return folder.run()

    return run


def with_edit(old: str, new: str, *options: str) -> Callable[[Folder], Outcome]:
    def run(folder: Folder) -> Outcome:
        folder.edit("job.py", old, new)
        return folder.run(*options)

    return run


def with_parameter(default: str, *options: str) -> Callable[[Folder], Outcome]:
    def run(folder: Folder) -> Outcome:
        folder.edit("job.py", "ValueState\n", "ValueState, Param\n")
        declared = f'    limit = Param(int, {default}help="how many")\n\n    def define('
        return with_edit("    def define(", declared, *options)(folder)

    return run


LETTERS = 'value=Json(Order), on_bad_record="dead_letter", dead_letter_topic="absent")'

REFUSALS: dict[str, Callable[[Folder], Outcome]] = {
    "source-topic-missing": with_config(sources__orders__topic="absent"),
    "sink-topic-missing": with_config(sinks__totals__topic="absent"),
    "dead-letter-topic-missing": with_edit("value=Json(Order))", LETTERS),
    "topics-missing": with_config(sources__orders__topic="absent", sinks__totals__topic="gone"),
    "broker-name-unknown": lambda folder: folder.run(
        "--kafka", "no-such-host.invalid:9092", kafka=False
    ),
    "sasl-at-a-plain-text-listener": with_config(
        kafka__properties__security__protocol="SASL_PLAINTEXT",
        kafka__properties__sasl__mechanism="PLAIN",
        kafka__properties__sasl__username="me",
        kafka__properties__sasl__password="hush-hush",
    ),
    "transaction-timeout-above-the-brokers": with_config(checkpoint__tolerated_outage="20min"),
    "unknown-setting-on-the-command-line": with_config(checkpoint__intervall="1s"),
    "unknown-setting-in-the-environment": lambda folder: folder.run(
        environment={"TIDEGATE_CHECKPOINT_INTERVAL": "1s"}
    ),
    "unknown-setting-in-a-file": with_file("[checkpoint]\nintervl = '1 s'\n"),
    "unit-unknown": with_config(checkpoint__timeout="10 sec"),
    "unit-missing": with_file("[checkpoint]\ntimeout = 10\n"),
    "file-torn": with_file("[checkpoint\n"),
    "unknown-option": with_options("--paralelism", "2"),
    "unknown-source": with_config(sources__ordrs__topic="orders"),
    "slots-too-few": with_options("-p", "4", "--slots", "1", "--task-managers", "2"),
    "parameter-unknown": with_parameter("default=1, ", "--set", "limt=2"),
    "parameter-of-another-type": with_parameter("default=1, ", "--set", "limit=many"),
    "parameter-missing": with_parameter(""),
    "parameter-without-value": with_options("--set", "limit"),
    "module-missing": with_reference("jobs:Totals"),
    "class-missing": with_reference("job:Total"),
    "reference-malformed": with_reference("job.Totals"),
    "import-fails": with_edit("class Order(", "import absent\n\n\nclass Order("),
    "syntax-wrong": with_edit("class Order(", "class Order((\n"),
    "uid-missing": with_edit('Running(), uid="running"', "Running()"),
    "event-time": with_edit("value=Json(Order))", 'value=Json(Order), event_time="amount")'),
    "ttl": with_edit("default=0", 'default=0, ttl="1 d"'),
    "storage-not-a-folder": with_config(checkpoint__dir="job.py"),
    "storage-of-no-kind": with_config(checkpoint__dir="ftp://host/folder"),
    "logs-not-a-folder": with_config(logs__dir="job.py"),
    "state-not-a-folder": with_config(logs__dir="other", state__local_dir="job.py"),
    "property-unknown": with_config(kafka__properties__sasl__passwrd="x"),
    "property-of-ours": with_edit(
        "value=Json(Order))", 'value=Json(Order), properties={"group.id": "mine"})'
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", REFUSALS)
def test_user_mistake_is_refused_before_any_process_starts(
    kafka: EmbeddedKafka, tmp_path: Path, name: str
) -> None:
    folder = Folder.make(tmp_path, kafka.bootstrap)
    outcome = REFUSALS[name](folder)
    assert outcome.code == 2, outcome.err
    assert_golden(name, folder.normalised(outcome.err.rstrip("\n")))
    assert not (tmp_path / ".tidegate" / "logs").exists(), "a process was started"
    assert not folder.journal()


def test_run_is_refused_when_no_broker_answers(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    folder = Folder.make(tmp_path, kafka.bootstrap)
    outcome = folder.run("--kafka", "127.0.0.1:1", kafka=False)
    assert outcome.code == 2, outcome.err
    in_time(outcome.took_s < UNREACHABLE_S_MAX, "it took too long")
    assert_golden("brokers-unreachable", folder.normalised(outcome.err.rstrip("\n")))
    assert not (tmp_path / ".tidegate" / "logs").exists(), "a process was started"


@pytest.mark.slow
def test_jobmanager_whose_port_another_process_holds_ends_and_does_not_serve(
    tmp_path: Path,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        command = [TIDEGATE, "jobmanager", "-c", f"jobmanager.port={port}"]
        ended = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
        )
    assert ended.returncode == 1, ended.stderr
    assert "serving" not in ended.stderr
    said = "\n".join(re.findall(r'message="(.*)"', ended.stderr))
    assert_golden("jobmanager-port-in-use", said.replace(str(port), "PORT"))


def test_second_run_of_a_job_is_refused_while_the_first_run_lives(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    folder = Folder.make(tmp_path, kafka.bootstrap)
    folder.orders(30)
    with folder.started(bounded=False) as run:
        run.until(lambda: len(folder.read("totals")) == 30, "at the end of its input")
        second = folder.run()
        assert second.code == 2, second.err
        assert_golden("second-run", folder.normalised(second.err.rstrip("\n")))
        assert run.stop().code == 0
    folder.orders(30, first=30)
    assert folder.run().code == 0
    folder.assert_exact(60)


@pytest.mark.slow
def test_pipeline_whose_define_is_not_deterministic_is_refused(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    folder = Folder.make(tmp_path, kafka.bootstrap)
    folder.edit("job.py", 'uid="running"', 'uid=f"running-{os.getpid()}"')
    folder.edit("job.py", "import msgspec", "import os\n\nimport msgspec")
    outcome = folder.run()
    assert outcome.code == 2, outcome.err
    assert_golden("define-not-deterministic", folder.normalised(paragraph(outcome.err)))
    assert not folder.journal()


# --- changes that do not fit what a job has stored ----------------------------------------------


@pytest.fixture(scope="module")
def finished(
    kafka: EmbeddedKafka, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Folder, str]]:
    """A folder whose job has run, and the text of its pipeline. After all tests the job continues,
    and its output is exact.
    """
    folder = Folder.make(tmp_path_factory.mktemp("finished"), kafka.bootstrap)
    folder.orders(30)
    assert folder.run().code == 0
    text = (folder.path / "job.py").read_text()
    yield folder, text
    folder.write("job.py", text)
    folder.orders(30, first=30)
    assert folder.run().code == 0
    folder.assert_exact(60)


def with_other_keys(folder: Folder) -> Outcome:
    folder.edit("job.py", "KeyedProcess[str,", "KeyedProcess[int,")
    folder.edit("job.py", "Context[str]", "Context[int]")
    folder.edit("job.py", "Total(ctx.key,", "Total(str(ctx.key),")
    folder.edit("job.py", "lambda order: order.customer)", "lambda order: order.amount)")
    return folder.run()


def with_narrowed_state(folder: Folder) -> Outcome:
    """Run with a state type that allows only some of the stored totals."""
    folder.edit("job.py", "import Iterable\n", "import Iterable\nfrom typing import Literal\n")
    folder.edit("job.py", "ValueState(int, default=0)", "ValueState(Literal[0, 10], default=0)")
    return folder.run()


def with_other_source(folder: Folder) -> Outcome:
    folder.edit("job.py", "    orders = Kafka", "    incoming = Kafka")
    folder.edit("job.py", "self.orders", "self.incoming")
    return folder.run()


CHANGES: dict[str, Callable[[Folder], Outcome]] = {
    "max-parallelism-changed": with_config(job__max_parallelism="64"),
    "key-type-changed": with_other_keys,
    "state-type-changed": with_edit("ValueState(int, default=0)", "ValueState(str, default='')"),
    "state-type-narrowed": with_narrowed_state,
    "state-without-its-step": with_edit('uid="running"', 'uid="renamed"'),
    "position-without-its-source": with_other_source,
    "checkpoint-unknown": with_options("--restore", "7-7"),
    "job-of-another-storage": with_config(checkpoint__dir="other"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CHANGES)
def test_change_that_does_not_fit_the_stored_state_is_refused(
    finished: tuple[Folder, str], name: str
) -> None:
    folder, text = finished
    folder.write("job.py", text)
    before, published = folder.journal(), folder.published()
    outcome = CHANGES[name](folder)
    assert outcome.code == 2, outcome.err
    said = folder.normalised(paragraph(outcome.err))
    said = re.sub(rf"\b{published[-1]}\b", "1-1", said)
    assert_golden(name, said)
    claims = [entry["kind"] for entry in folder.journal()[len(before) :]]
    assert set(claims) <= {"claim", "closed"}, "it has published something"


@pytest.mark.slow
def test_take_over_of_a_job_name_starts_the_job_in_another_checkpoint_storage(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    folder = Folder.make(tmp_path, kafka.bootstrap)
    folder.orders(9)
    assert folder.run().code == 0
    elsewhere = {"checkpoint.dir": "other"}
    taken = folder.run("--take-over", config=elsewhere)
    assert taken.code == 0, taken.err
    assert len(folder.read("totals")) == 18, "it begins anew, and the operator has asked for it"
    assert folder.run(config=elsewhere).code == 0
    assert len(folder.read("totals")) == 18


# --- what only shows while a job runs -----------------------------------------------------------


def test_record_too_large_for_its_topic_fails_the_job_without_a_restart(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    folder = Folder.make(tmp_path, kafka.bootstrap)
    folder.edit("job.py", "Total(ctx.key, ", "Total(ctx.key * 2_000_000, ")
    folder.orders(1)
    outcome = folder.run()
    assert outcome.code == 1, outcome.err
    assert " 0 restarts" in outcome.err
    assert_golden("record-too-large", folder.normalised(paragraph(outcome.err)))


@pytest.mark.slow
def test_a_source_topic_that_is_deleted_fails_the_job(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    folder = Folder.make(tmp_path, kafka.bootstrap)
    folder.orders(3)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    config = {"checkpoint.tolerated_outage": "5s"}
    with folder.started(bounded=False, config=config) as run:
        run.until(lambda: len(folder.read("totals")) == 3, "at the end of its input")
        orders = folder.topics["orders"]
        admin.delete_topics([orders], operation_timeout=TIMEOUT_S)[orders].result(TIMEOUT_S)
        # Without the kill, the source would notice only after half a minute without records.
        os.kill(run.slots()[0], signal.SIGKILL)
        outcome = run.wait()
    assert outcome.code == 1, outcome.err
    assert_golden("source-topic-deleted", folder.normalised(paragraph(outcome.err)))
