"""The locks of Kafka's jars, and downloads that break, lie or meet."""

from __future__ import annotations

import hashlib
import sys
import types
from pathlib import Path

import pytest

from tidegate.drivers.kafka import jars as module
from tidegate.drivers.kafka.jars import VERSIONS, Jar, jars, parse_lock, read_lock
from tidegate.errors import ExternalError, InternalError, UserError

HASH = "0" * 64


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_has_a_lock_with_kafka_and_a_log_binding(version: str) -> None:
    artifacts = {jar.artifact: jar for jar in read_lock(version)}
    assert artifacts["kafka_2.13"].version == version
    assert artifacts["kafka-clients"].version == version
    assert "slf4j-simple" in artifacts
    assert len({jar.file_name for jar in artifacts.values()}) == len(artifacts)


def test_lock_line_holds_jar_coordinates_and_hash() -> None:
    assert parse_lock(f"org.x:y:1.0:linux {HASH}\norg.x:z:2: {HASH}\n") == [
        Jar("org.x", "y", "1.0", "linux", HASH),
        Jar("org.x", "z", "2", "", HASH),
    ]


def test_jar_file_name_is_that_of_the_maven_registry() -> None:
    assert Jar("g", "a", "1", "", HASH).file_name == "a-1.jar"
    assert Jar("g", "a", "1", "linux", HASH).file_name == "a-1-linux.jar"


@pytest.mark.parametrize("text", ["", "a:b:c", f"a:b:c {HASH}", "a:b:c: 1234", f"a:b:c:d:e {HASH}"])
def test_torn_lock_raises_internal_error(text: str) -> None:
    with pytest.raises(InternalError):
        parse_lock(text)


def test_unknown_kafka_version_is_refused_with_the_known_versions() -> None:
    with pytest.raises(UserError, match=r"4\.3\.0, 4\.3\.1 or 3\.9\.1"):
        read_lock("1.0")


class Registry:
    """Stands in for jgo: writes the same bytes for every jar, or fails some times first."""

    def __init__(self, folder: Path, content: bytes, failures: int = 0) -> None:
        self.folder, self.content, self.failures, self.asked = folder, content, failures, 0

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        package, maven = types.ModuleType("jgo"), types.ModuleType("jgo.maven")
        maven.MavenContext = lambda **_: self  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "jgo", package)
        monkeypatch.setitem(sys.modules, "jgo.maven", maven)

    def project(self, _group: str, _artifact: str) -> Registry:
        return self

    def at_version(self, _version: str) -> Registry:
        return self

    def artifact(self, _classifier: str) -> Registry:
        return self

    def resolve(self) -> Path:
        self.asked += 1
        if self.asked <= self.failures:
            raise RuntimeError("the line is down")
        path = self.folder / f"{self.asked}.jar"
        path.write_bytes(self.content)
        return path


@pytest.fixture
def one_jar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Jar:
    """A lock with a single jar whose content is `good`, and an empty cache."""
    jar = Jar("g", "a", "1", "", hashlib.sha256(b"good").hexdigest())
    monkeypatch.setattr(module, "read_lock", lambda _version: [jar])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "registry").mkdir()
    return jar


def test_downloaded_jar_is_cached_and_a_failed_download_is_retried(
    one_jar: Jar, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = Registry(tmp_path / "registry", b"good", failures=2)
    registry.install(monkeypatch)
    said: list[str] = []
    (path,) = jars("v", said.append)
    assert path.read_bytes() == b"good"
    assert said == ["downloading Kafka v: 1 of 1 jar"]
    assert jars("v", said.append) == [path]
    assert registry.asked == 3
    assert sorted(each.name for each in path.parent.parent.iterdir()) == ["kafka-v"]


def test_jar_with_another_hash_is_refused_and_not_cached(
    one_jar: Jar, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Registry(tmp_path / "registry", b"evil").install(monkeypatch)
    with pytest.raises(ExternalError, match=r"g:a:1: came with another SHA-256"):
        jars("v", lambda _: None)
    assert list((tmp_path / "cache" / "tidegate").iterdir()) == []


def test_unreachable_registry_raises_external_error(
    one_jar: Jar, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Registry(tmp_path / "registry", b"good", failures=99).install(monkeypatch)
    with pytest.raises(ExternalError, match="the line is down"):
        jars("v", lambda _: None)


def test_a_cache_that_lost_a_jar_is_filled_again(
    one_jar: Jar, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Registry(tmp_path / "registry", b"good").install(monkeypatch)
    (path,) = jars("v", lambda _: None)
    path.rename(path.with_name("other.jar"))
    assert jars("v", lambda _: None) == [path]
    assert path.exists()


def test_missing_jgo_raises_an_error_with_the_pip_extra(
    one_jar: Jar, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jgo", None)
    monkeypatch.setitem(sys.modules, "jgo.maven", None)
    with pytest.raises(UserError, match=r"pip install 'tidegate\[broker\]'"):
        jars("v", lambda _: None)
