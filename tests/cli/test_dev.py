"""The parts of `tidegate dev` that need no broker: the watch, the search for the pipeline, the
sample of records, and the choice of brokers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from tidegate import Avro, Json, Raw, Utf8
from tidegate.api.records.formats import Format
from tidegate.cli.kafka.record_text import auto_key, auto_value, data_text
from tidegate.cli.project.broker import dev_broker
from tidegate.cli.project.dev import find_pipeline
from tidegate.cli.project.output import StatusLines
from tidegate.cli.project.record_viewer import (
    SHOWN_PER_SECOND,
    WIDTH,
    Sampler,
    ViewedTopic,
    decoder_of,
    record_line,
)
from tidegate.drivers.file_watch import wait_for_save, watched_folders
from tidegate.errors import RefusedError

PIPELINE = "from tidegate import Pipeline\n\nclass {name}(Pipeline, name='a'):\n    pass\n"


class Order(msgspec.Struct, frozen=True):
    customer: str


# --- the search for the pipeline ----------------------------------------------------------------


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_only_pipeline_of_a_project_is_found(tmp_path: Path) -> None:
    write(tmp_path, "shop/pipeline.py", PIPELINE.format(name="Totals"))
    write(
        tmp_path, "shop/base.py", "class Base(Pipeline): ...\nclass Other(Order, name='a'): ...\n"
    )
    write(tmp_path, "shop/broken.py", "def (")
    write(tmp_path, "tests/test_a.py", PIPELINE.format(name="OfATest"))
    write(tmp_path, ".venv/lib/a.py", PIPELINE.format(name="OfALibrary"))
    write(tmp_path, "env/pyvenv.cfg", "")
    write(tmp_path, "env/lib/a.py", PIPELINE.format(name="OfAnEnvironment"))
    assert find_pipeline(tmp_path) == "shop.pipeline:Totals"


def test_pipeline_of_a_package_is_found_under_its_name(tmp_path: Path) -> None:
    text = PIPELINE.format(name="Totals").replace("(Pipeline", "(tidegate.Pipeline")
    write(tmp_path, "shop/__init__.py", text)
    assert find_pipeline(tmp_path) == "shop:Totals"


def test_several_pipelines_are_named_and_none_is_explained(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="There is no pipeline in this folder"):
        find_pipeline(tmp_path)
    for name in ("b", "a"):
        write(tmp_path, f"{name}.py", PIPELINE.format(name="Totals"))
    with pytest.raises(RefusedError, match=r"Give one of them: a:Totals, b:Totals\."):
        find_pipeline(tmp_path)


# --- the watch ----------------------------------------------------------------------------------


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[Future[frozenset[Path]]]:
    """A watch of the folder, which begins before the test changes a file."""
    stop = threading.Event()
    write(tmp_path, "shop/pipeline.py", "a = 1\n")
    with ThreadPoolExecutor() as threads:
        found = threads.submit(wait_for_save, tmp_path, stop)
        threading.Event().wait(0.5)
        try:
            yield found
        finally:
            stop.set()


def saved(watch: Future[frozenset[Path]], save: Callable[[], object]) -> frozenset[Path]:
    """Save until the watch sees it: on a busy machine the first save can be before its begin."""
    for _ in range(100):
        save()
        if wait([watch], timeout=0.3).done:
            break
    return watch.result(0)


def test_saved_file_of_code_ends_the_watch(tmp_path: Path, watch: Future[frozenset[Path]]) -> None:
    found = saved(watch, lambda: write(tmp_path, "shop/pipeline.py", "a = 2\n"))
    assert found == {tmp_path / "shop" / "pipeline.py"}


def test_file_that_replaces_another_ends_the_watch(
    tmp_path: Path, watch: Future[frozenset[Path]]
) -> None:
    pipeline = tmp_path / "shop" / "pipeline.py"
    found = saved(watch, lambda: write(tmp_path, "shop/saved.tmp", "a = 2\n").replace(pipeline))
    assert pipeline in found


def test_other_files_do_not_end_the_watch(tmp_path: Path, watch: Future[frozenset[Path]]) -> None:
    write(tmp_path, "shop/notes.txt", "a")
    write(tmp_path, "shop/__pycache__/a.py", "a")
    write(tmp_path, ".tidegate/dev/a.py", "a")
    threading.Event().wait(1.0)
    assert not watch.done()


def test_file_in_a_new_folder_ends_the_watch(
    tmp_path: Path, watch: Future[frozenset[Path]]
) -> None:
    (tmp_path / "shop" / "new").mkdir()
    threading.Event().wait(1.0)
    assert not watch.done()
    write(tmp_path, "shop/new/more.py", "a = 1\n")
    assert watch.result(20) == {tmp_path / "shop" / "new" / "more.py"}


def test_watch_that_is_stopped_returns_nothing(tmp_path: Path) -> None:
    stop = threading.Event()
    stop.set()
    assert wait_for_save(tmp_path, stop) == frozenset()


def test_hidden_folders_caches_and_environments_are_not_watched(tmp_path: Path) -> None:
    for name in ("shop", ".git", "__pycache__", "node_modules", "env/lib"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "env" / "pyvenv.cfg").touch()
    found = {path.relative_to(tmp_path).as_posix() for path in watched_folders(tmp_path)}
    assert found == {".", "shop"}


# --- records ------------------------------------------------------------------------------------


def test_sampler_shows_a_few_records_a_second_and_counts_the_others() -> None:
    sampler = Sampler()
    taken = [sampler.take("a", 10.1) for _ in range(SHOWN_PER_SECOND + 3)]
    assert taken == [True] * SHOWN_PER_SECOND + [False] * 3
    assert sampler.take("b", 10.2)
    assert sampler.left_out(10.9) == {}
    assert sampler.left_out(11.0) == {"a": 3}
    assert sampler.left_out(11.0) == {}
    assert sampler.take("a", 11.0)


AVRO: Format[Any] = Avro(Order)


@pytest.mark.parametrize(
    ("form", "data", "text"),
    [
        (Json(Order), b'{"customer": "ann"}', '{"customer":"ann"}'),
        (Json(Order), b"no order", "no order"),
        (Utf8(), "é".encode(), "é"),
        (Raw(), b"\xff\x00", "base64:/wA="),
        (None, b"a\nb", r"a\nb"),
        (AVRO, AVRO.encoder()(Order("ann")), '{"customer":"ann"}'),
    ],
)
def test_record_is_shown_in_a_readable_form(
    form: Format[Any] | None, data: bytes, text: str
) -> None:
    assert data_text(data, decoder_of(form, auto_value), none="") == text


def test_record_of_another_type_is_shown_in_base64_with_the_reason() -> None:
    text = data_text(b"", decoder_of(AVRO, auto_value), none="")
    assert text.startswith("base64: (not Avro of the pipeline: ")


def test_line_of_a_record_has_direction_topic_key_and_value_and_is_not_too_long() -> None:
    viewed = ViewedTopic("out", auto_key, auto_value)

    def line(key: bytes | None, value: bytes | None) -> str:
        record: Any = SimpleNamespace(key=lambda: key, value=lambda: value)
        return record_line("totals", viewed, record)

    assert line(b"ann", b"7") == "out totals: ann 7"
    assert line(None, None) == "out totals: (tombstone)"
    assert len(line(None, b"a" * 500)) == WIDTH


def test_status_lines_that_only_repeat_the_one_before_are_left_out() -> None:
    shown: list[str] = []
    lines = StatusLines(shown.append)
    first = "a: running, in 12 (2/s), out 12 (2/s), lag 0, checkpoint 1-2 in 74 ms, 1.5 KiB"
    for line in (first, first.replace("(2/s)", "(0/s)").replace("1-2 in 74", "1-3 in 5"), "b", "b"):
        lines.line(line)
    lines.line(first.replace("12", "13"))
    assert shown == [first, "b", first.replace("12", "13")]


# --- brokers ------------------------------------------------------------------------------------


def test_brokers_of_the_settings_are_used_and_nothing_is_removed(tmp_path: Path) -> None:
    kept = write(tmp_path, ".tidegate/checkpoints/a", "a")
    with dev_broker(tmp_path, "h:1", print, keep=False) as broker:
        assert broker.bootstrap == "h:1"
        assert broker.scratch is None
        assert not broker.settings
        with (
            pytest.raises(RefusedError, match="already runs tidegate dev in this folder"),
            dev_broker(tmp_path, "h:1", print, keep=False),
        ):
            pass
    assert kept.exists()
