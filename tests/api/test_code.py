"""From a reference to the class, and the digest of its code.

Method: small packages in a temporary folder, imported by separate processes, changed between two.
"""

from __future__ import annotations

import platform
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from tidegate import PipelineError, build
from tidegate.api.code.code import code_digest, load_pipeline, stored_reference
from tidegate.api.code.rebuild import rebuild
from tidegate.api.code.references import NEEDED
from tidegate.api.declarations import location
from tidegate.api.declarations.location import show_paths_below
from tidegate.errors import CodeMismatchError, TidegateError, UserCodeError

GOOD = """
from tidegate import Json, KafkaSink, KafkaSource, Pipeline
from {package}.helper import wanted

class Copies(Pipeline, name="copies"):
    a = KafkaSource("a", value=Json(int))
    b = KafkaSink("b", value=Json(int))

    def define(self) -> None:
        self.a.filter(wanted).to(self.b)

class Base(Pipeline, name=None):
    pass
"""
TWO = """
from tidegate import Pipeline
from {package}.good import Copies

class Two(Copies, name="two"):
    pass

class One(Copies, name="one"):
    pass

Same = One
"""
DIGEST = """
import pathlib, sys
from tidegate.api.code.code import code_digest, load_pipeline
print(code_digest(load_pipeline(sys.argv[1], pathlib.Path.cwd())))
"""


def package(folder: Path, name: str) -> Path:
    made = folder / name
    made.mkdir()
    (made / "good.py").write_text(GOOD.format(package=name))
    (made / "helper.py").write_text("def wanted(number: int) -> bool:\n    return number > 0\n")
    (made / "broken.py").write_text("a = 1\nb = 1 / 0\n")
    (made / "syntax.py").write_text("a = 1\ndef\n")
    (made / "needs.py").write_text("import nothing_of_that_name\n")
    (made / "empty.py").write_text("")
    (made / "two.py").write_text(TWO.format(package=name))
    (made / "__init__.py").write_text("")
    (made / "nameless.py").write_text(
        "from tidegate import Pipeline\nclass Totals(Pipeline):\n    pass\n"
    )
    (made / "misspelt.py").write_text(
        "from tidegate import Pipeline\nclass Totals(Pipeline, name='t', paralelism=2):\n    pass\n"
    )
    return made


def digest(folder: Path, reference: str) -> str:
    command = [sys.executable, "-c", DIGEST, reference]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_load_pipeline_finds_the_class_and_puts_its_folder_first_on_sys_path(
    tmp_path: Path,
) -> None:
    package(tmp_path, "found")
    before = list(sys.path)
    try:
        assert load_pipeline("found.good:Copies", tmp_path).pipeline_name == "copies"
        assert load_pipeline("found.good:Copies", tmp_path).pipeline_name == "copies"
        assert sys.path == [str(tmp_path), *before]
    finally:
        sys.path[:] = before


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("lost.good:", "'lost.good:' is not MODULE:CLASS or FILE.py:CLASS"),
        ("lost.good:3", "is not MODULE:CLASS"),
        (":Copies", "is not MODULE:CLASS"),
        ("", "is not MODULE:CLASS"),
        ("lost..good:Copies", "is not MODULE:CLASS"),
        ("lost.empty", "lost.empty declares no pipeline; add one: class Totals"),
        ("lost.two", "lost.two has several pipelines: One, Two; name one of them, as in lost.two:"),
        ("lost/two.py", "lost/two.py has several pipelines: One, Two; name one of them, as in "),
        (
            "lost/good.py:Copy",
            "Module 'lost/good.py' has no pipeline class 'Copy'. It has: Copies.",
        ),
        ("lost/none.py", "lost/none.py does not exist"),
        ("lost/dotted.name.py:Copies", "dotted.name.py cannot be imported, because its name has"),
        ("kafka.py", "kafka.py would hide the module 'kafka', which a job needs; rename the file"),
        ("email/mine.py", "would hide the module 'email', which a job needs; rename the package"),
        ("folder.py", "folder.py is a folder; a pipeline is in a file such as totals.py"),
        ("nowhere.good:Copies", "There is no module 'nowhere' in"),
        ("lost.nowhere:Copies", "There is no module 'lost.nowhere' in"),
        ("lost.good.Copies", "separate them by a colon, as in lost.good:Copies"),
        ("./lost/good:Copies", "FILE.py:CLASS; write, say, ./lost/good.py:Copies"),
        ("lost/good", "write, say, pipelines.order_totals:OrderTotals or order_totals.py"),
        ("lost.misspelt:Copies", "has no option paralelism=. Did you mean parallelism=?"),
        ("lost.nameless:Copies", 'has no name. Write class Totals(Pipeline, name="totals").'),
        ("lost.good:Copy", "Module 'lost.good' has no pipeline class 'Copy'. It has: Copies."),
        ("lost.good:Base", "Module 'lost.good' has no pipeline class 'Base'. It has: Copies."),
        ("lost.good:wanted", "Module 'lost.good' has no pipeline class 'wanted'"),
        ("lost.empty:Copies", "It has none."),
        ("lost.broken:Copies", "Importing lost.broken failed at broken.py:2: ZeroDivisionError"),
        ("lost.syntax:Copies", "Importing lost.syntax failed at syntax.py:2: SyntaxError"),
        (
            "lost.needs:Copies",
            "failed at needs.py:1: ModuleNotFoundError: No module named 'nothing",
        ),
    ],
)
def test_reference_that_leads_to_no_pipeline_class_is_refused(
    tmp_path: Path, reference: str, words: str
) -> None:
    made = package(tmp_path, "lost")
    (made / "dotted.name.py").write_text("")
    (tmp_path / "kafka.py").write_text("")
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "email").mkdir()
    for name in ("__init__", "mine"):
        (tmp_path / "email" / f"{name}.py").write_text("")
    before, loaded = list(sys.path), set(sys.modules)
    try:
        with pytest.raises(PipelineError) as caught:
            load_pipeline(reference, tmp_path)
    finally:
        sys.path[:] = before
        for name in set(sys.modules) - loaded:
            del sys.modules[name]
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("reference", "stored"),
    [
        ("named.good", "named.good:Copies"),
        ("named/good.py", "named.good:Copies"),
        ("./named/../named/good.py:Copies", "named.good:Copies"),
        ("named/two.py:Same", "named.two:Same"),
        ("plain/hourly-totals.py", "hourly-totals:Hourly"),
        ("named/__init__.py:Copies", "named:Copies"),
    ],
)
def test_file_and_module_lead_to_the_class_and_to_the_reference_that_every_process_uses(
    tmp_path: Path, reference: str, stored: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = package(tmp_path, "named")
    (made / "__init__.py").write_text(
        "def __getattr__(name):\n    import named.good as g\n    return getattr(g, name)\n"
    )
    (tmp_path / "plain").mkdir()
    hourly = GOOD.format(package="named").replace("Copies", "Hourly")
    (tmp_path / "plain" / "hourly-totals.py").write_text(hourly)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    loaded = set(sys.modules)
    try:
        pipeline = load_pipeline(reference, tmp_path)
        assert stored_reference(reference, tmp_path, pipeline) == stored
        root = tmp_path / "plain" if "plain" in reference else tmp_path
        assert sys.path[0] == str(root)
        assert load_pipeline(stored, root) is pipeline
        absolute = reference if "/" not in reference else str(tmp_path / reference)
        assert load_pipeline(absolute, tmp_path) is pipeline
    finally:
        for name in set(sys.modules) - loaded:
            del sys.modules[name]


def test_file_with_the_name_of_a_loaded_module_of_another_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    for folder in ("first", "second"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "twin.py").write_text(GOOD.replace("from {package}.helper", "#"))
    try:
        load_pipeline("first/twin.py", tmp_path)
        with pytest.raises(PipelineError, match="this process has another module 'twin', from"):
            load_pipeline("second/twin.py", tmp_path)
    finally:
        sys.modules.pop("twin", None)


def test_names_that_no_file_may_have_are_the_modules_of_all_dependencies() -> None:
    """A dependency that is added later must be added there too."""
    required = metadata.requires("tidegate") or []
    names = {
        re.split(r"[\s;<>=!~\[(]", each)[0].lower() for each in required if "extra" not in each
    }
    modules = {
        module
        for module, owners in metadata.packages_distributions().items()
        if names & {owner.lower() for owner in owners} and not module.startswith("_")
    }
    assert {"kafka", "msgspec", "rocksdict"} <= modules
    assert modules - NEEDED == set()


def test_code_digest_changes_only_with_the_modules_of_the_package(
    tmp_path: Path,
) -> None:
    made = package(tmp_path, "dug")
    first = digest(tmp_path, "dug.good:Copies")
    (tmp_path / "beside.py").write_text("")
    (made / "notes.txt").write_text("")
    assert digest(tmp_path, "dug.good:Copies") == first
    (made / "helper.py").write_text("def wanted(number: int) -> bool:\n    return number > 1\n")
    second = digest(tmp_path, "dug.good:Copies")
    (made / "empty.py").rename(made / "renamed.py")
    assert len({first, second, digest(tmp_path, "dug.good:Copies")}) == 3


def test_code_digest_of_a_single_module_changes_with_its_file(tmp_path: Path) -> None:
    (tmp_path / "helper_alone.py").write_text("def wanted(number: int) -> bool:\n    return True\n")
    source = GOOD.format(package="x").replace("x.helper", "helper_alone")
    (tmp_path / "alone.py").write_text(source)
    first = digest(tmp_path, "alone:Copies")
    (tmp_path / "alone.py").write_text(source + "\n")
    assert digest(tmp_path, "alone:Copies") != first


def test_rebuild_refuses_another_python_version_code_digest_or_fingerprint(tmp_path: Path) -> None:
    package(tmp_path, "moved")
    reference, before = "moved.good:Copies", list(sys.path)
    try:
        pipeline = load_pipeline(reference, tmp_path)
        submitted = {
            "fingerprint": build(pipeline).fingerprint(),
            "digest": code_digest(pipeline),
            "python_version": platform.python_version(),
        }
        made, graph = rebuild(reference, str(tmp_path), {}, **submitted)
        assert (made, graph.name) == (pipeline, "copies")
        for other, words in (
            ({"python_version": "2.7"}, f"{reference} was submitted with Python 2.7, this process"),
            ({"digest": "x"}, f"The code of {reference} in {tmp_path} is not the code that was"),
            ({"fingerprint": "x"}, f"{reference} gave another graph here than at submit"),
        ):
            with pytest.raises(CodeMismatchError) as caught:
                rebuild(reference, str(tmp_path), {}, **{**submitted, **other})
            assert words in str(caught.value)
    finally:
        sys.path[:] = before


def test_place_of_a_step_is_shown_relative_to_the_code_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Users know `shown/good.py`, and not where a host has unpacked it."""
    package(tmp_path, "shown")
    monkeypatch.setattr("tidegate.api.declarations.location._code_folders", [])
    monkeypatch.setattr(sys, "path", list(sys.path))
    pipeline = load_pipeline("shown.good:Copies", tmp_path)
    (node,) = [node for node in build(pipeline) if node.kind == "filter"]
    assert node.location == "good.py:10"
    _, graph = rebuild(
        "shown.good:Copies",
        str(tmp_path),
        {},
        fingerprint=build(pipeline).fingerprint(),
        digest=None,
        python_version=platform.python_version(),
    )
    (node,) = [node for node in graph if node.kind == "filter"]
    assert node.location == "shown/good.py:10"


def test_code_folder_is_registered_once_in_a_process_with_many_attempts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker of Spark runs thousands of tasks, and each place looks through all folders."""
    monkeypatch.setattr("tidegate.api.declarations.location._code_folders", [])
    for _ in range(3):
        show_paths_below(Path(str(tmp_path)))
    assert location._code_folders == [tmp_path]


def test_place_of_a_step_is_not_relative_to_a_folder_whose_name_is_only_a_prefix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package(tmp_path, "beside")
    monkeypatch.setattr("tidegate.api.declarations.location._code_folders", [tmp_path / "bes"])
    monkeypatch.setattr(sys, "path", list(sys.path))
    (node,) = [
        node
        for node in build(load_pipeline("beside.good:Copies", tmp_path))
        if node.kind == "filter"
    ]
    assert node.location == "good.py:10"


FLAKY = """
from pathlib import Path

from tidegate import Json, KafkaSink, KafkaSource, Param, Pipeline

HERE = Path(__file__).parent

def needs(name):
    if (HERE / name).exists():
        raise eval((HERE / name).read_text())
    return True

needs("at-import")

class Flaky(Pipeline, name="flaky"):
    numbers = KafkaSource("numbers", value=Json(int))
    out = KafkaSink("out", value=Json(int))
    limit = Param(int, default=1, check=lambda limit: needs("in-check"))

    def define(self):
        needs("in-define")
        self.numbers.to(self.out)
"""


@pytest.mark.parametrize("where", ["at-import", "in-check", "in-define"])
@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        ("ConnectionError('the database is down')", UserCodeError),
        ("MemoryError()", UserCodeError),
        ("ImportError('no such library')", PipelineError),
        ("SyntaxError('no Python')", PipelineError),
    ],
)
def test_rebuild_translates_exceptions_of_user_code_and_succeeds_when_retried(
    tmp_path: Path, where: str, raised: str, expected: type[TidegateError]
) -> None:
    module = f"flaky_{where.replace('-', '_')}"
    (tmp_path / f"{module}.py").write_text(FLAKY)
    reference, before = f"{module}:Flaky", list(sys.path)
    try:
        pipeline = load_pipeline(reference, tmp_path)
        submitted = {
            "fingerprint": build(pipeline).fingerprint(),
            "digest": code_digest(pipeline),
            "python_version": platform.python_version(),
        }
        del sys.modules[module]  # as in another process
        (tmp_path / where).write_text(raised)
        with pytest.raises(expected) as caught:
            rebuild(reference, str(tmp_path), {}, **submitted)
        assert type(caught.value) is expected
        assert raised.partition("(")[0] in str(caught.value)
        (tmp_path / where).unlink()
        assert rebuild(reference, str(tmp_path), {}, **submitted)[1].name == "flaky"
    finally:
        sys.path[:] = before
        sys.modules.pop(module, None)
