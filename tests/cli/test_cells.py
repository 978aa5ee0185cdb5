"""The module that is written from the cells of a notebook: what is copied, and what is refused.

Method: cells run one after the other in one namespace, as in a session. The module that is written
from their text is then run in another one.
"""

from __future__ import annotations

import builtins
import sys
from code import InteractiveInterpreter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tidegate import PipelineError
from tidegate.cli.scripts import cells as module
from tidegate.cli.scripts.cells import (
    check_same,
    module_text,
    select,
    top_level_statements,
    write_cells,
)

FLOW = """
class Copies(Pipeline, name="copied-numbers"):
    a = KafkaSource("a", value=Json(int))
    b = KafkaSink("b", value=Json(int))

    def define(self) -> None:
        self.a.map(double).to(self.b)
"""
IMPORTS = "from tidegate import Json, KafkaSink, KafkaSource, Pipeline"


def session(*cells: str) -> dict[str, Any]:
    """Run the cells, as a kernel does. A cell that fails leaves what it has done until then."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    interpreter = InteractiveInterpreter(namespace)
    for cell in cells:
        interpreter.runsource(cell, symbol="exec")
    return namespace


def written(name: str, *cells: str) -> str:
    """Return the module of `name`, checked against the session."""
    namespace = session(*cells)
    chosen = select(name, list(top_level_statements(cells)), namespace)
    text = module_text(chosen)
    check_same(session(text), namespace, chosen)
    return text


def body(text: str) -> list[str]:
    return [line for line in text.splitlines()[1:] if line and not line.startswith("# In")]


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["x = 1\ny = 2\ndef f(): return x"], ["x = 1", "def f(): return x"]),
        (["x = 1", "def f(): return x", "x = 2"], ["def f(): return x", "x = 2"]),
        (["def f(): return 1", "def f(): return 2"], ["def f(): return 2"]),
        (["import os.path\ndef f(): return os.sep"], ["import os.path", "def f(): return os.sep"]),
        (["a, b = 1, 2; c = 3\ndef f(): return b"], ["a, b = 1, 2", "def f(): return b"]),
        (["x = 1\nz = [x for x in 'ab']\ndef f(): return x"], ["x = 1", "def f(): return x"]),
        (["x = 1\ndef f(x): return lambda: x"], ["def f(x): return lambda: x"]),
        (["x = 1\nclass f:\n    x: int = 2"], ["class f:", "    x: int = 2"]),
        (["R = int\nclass f:\n    x: 'list[R]'"], ["R = int", "class f:", "    x: 'list[R]'"]),
        (["R = int\ndef f(a: 'R') -> 'R': ..."], ["R = int", "def f(a: 'R') -> 'R': ..."]),
        (["def g(): return f\ndef f(): return g"], ["def g(): return f", "def f(): return g"]),
        (
            ["def d(g):\n    return g\n@d\n\ndef f():\n    '''a\n    b'''"],
            ["def d(g):", "    return g", "@d", "def f():", "    '''a", "    b'''"],
        ),
        (
            ["x = 1", "from __future__ import annotations\ndef f(): return x"],
            ["from __future__ import annotations", "x = 1", "def f(): return x"],
        ),
        (
            ["from math import *\ndef f(): return tau"],
            ["from math import *", "def f(): return tau"],
        ),
        (["this is not Python", "def f(): return print"], ["def f(): return print"]),
    ],
)
def test_module_has_the_declarations_on_which_the_class_depends_in_the_order_of_the_cells(
    cells: list[str], expected: list[str]
) -> None:
    valid = [each for each in cells if "not Python" not in each]
    chosen = select("f", list(top_level_statements(cells)), session(*valid))
    text = module_text(chosen)
    assert body(text) == expected
    check_same(session(text), session(*valid), chosen)


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        (["if True:\n    x = 1", "def f(): return x"], "f uses 'x', which cell 0 sets in a block"),
        (["for x in 'a': pass", "def f(): return x"], "'x', which cell 0 sets in a block"),
        (["x = 1", "x += 1", "def f(): return x"], "'x', which cell 1 sets in a block"),
        (["def f(): return g()", "def g(): return display"], "g uses 'display', which no cell"),
        (["x = []", "x.append(1)", "def f(): return x"], "'x' of this session is not what cell 0"),
        (
            ["def f(): return 1", "1 / 0\ndef f(): return 2"],
            "'f' of this session is not what cell 1",
        ),
        (["class f:\n    def g(self): return 1", "f.g = lambda self: 2"], "is not what cell 0"),
        (["class f:\n    x = 1", "1 / 0\nclass f:\n    y = 1"], "'f' of this session is not"),
        (["def f(): return lambda: 1", "1 / 0\ndef f(): return lambda: 2"], "is not what cell 1"),
        (["def f(): return 1", "1 / 0\ndef f(): return True"], "is not what cell 1"),
    ],
)
def test_declaration_that_no_file_can_repeat_is_refused_with_its_cell(
    cells: list[str], words: str
) -> None:
    with pytest.raises(PipelineError) as caught:
        written("f", *cells)
    assert words in str(caught.value)


def test_name_that_no_cell_declares_is_refused() -> None:
    namespace = {**session("def f(): return given"), "given": 1}
    with pytest.raises(PipelineError, match="f uses 'given', which no cell of this notebook"):
        select("f", list(top_level_statements(["def f(): return given"])), namespace)


def test_cell_below_a_magic_command_that_only_runs_it_counts() -> None:
    cells = ["x = 1", "get_ipython().run_cell_magic('time', '', 'def f(): return x\\n')"]
    statements = list(top_level_statements(cells))
    assert [(each.cell, each.source) for each in statements] == [
        (0, "x = 1"),
        (1, "def f(): return x"),
    ]
    other = "get_ipython().run_cell_magic('bash', '', 'x=1\\n')"
    assert [each.source for each in top_level_statements([other])] == [other]


# --- the file -----------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("copied_numbers_cells", None)


def write(cells: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    namespace = session(*cells)
    monkeypatch.setattr(module, "executed_cells", lambda: cells)
    return write_cells(namespace["Copies"], namespace, folder)


def test_file_is_written_again_and_imported_again_at_each_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    for factor in (2, 3):  # files of one size, written within one second
        cells = [IMPORTS, f"def double(n): return {factor} * n", FLOW]
        file = write(cells, folder, monkeypatch)
        assert file == folder / "copied_numbers_cells.py"
        assert sys.modules["copied_numbers_cells"].double(1) == factor


def test_file_of_the_user_is_not_overwritten(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = folder / "copied_numbers_cells.py"
    own.write_text("# mine")
    with pytest.raises(PipelineError, match="which is a file of your own"):
        write([IMPORTS, "def double(n): return n", FLOW], folder, monkeypatch)
    assert own.read_text() == "# mine"


def test_class_that_ran_before_what_it_needs_was_declared_again_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = "Number = int"
    cells = [IMPORTS, number, "def double(n): return n", FLOW.replace("(int)", "(Number)"), number]
    with pytest.raises(PipelineError, match=r"NameError: name 'Number' is not defined. Run the"):
        write(cells, folder, monkeypatch)


def test_run_inside_of_a_needed_declaration_is_refused_and_starts_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builtins, "before", lambda run: None, raising=False)
    cells = [IMPORTS, "def double(n): return result", FLOW, "result = before(Copies().run)"]
    namespace = session(*cells)
    cells[-1] = "result = Copies().run()"
    monkeypatch.setattr(module, "executed_cells", lambda: cells)
    with pytest.raises(PipelineError, match="is called when copied_numbers_cells is imported"):
        write_cells(namespace["Copies"], namespace, folder)


def test_class_of_a_python_prompt_is_refused_with_the_remedy(folder: Path) -> None:
    namespace = session(IMPORTS, "def double(n): return n", FLOW)
    with pytest.raises(PipelineError, match=r"typed into a Python prompt.*Put the class into a"):
        write_cells(namespace["Copies"], namespace, folder)
