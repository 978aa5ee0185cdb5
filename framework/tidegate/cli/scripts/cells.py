"""Writes the module of a pipeline that was declared in the cells of a notebook.

The processes of a job import a pipeline by its module, and the cells of a notebook are no module.
So this module copies the statements of the cells on which the class depends into a file in the
working folder: imports, functions, classes and assignments, found by name from the class on, each
in the order in which the cells ran. The file is ordinary Python. It belongs to the job as any file
of a pipeline does, errors name its lines, and `tidegate run` accepts it too.

Nothing of the session's memory is copied, only source text. Invariant: what the file defines is
what the session has. `check_same` compares both after the import, so that a cell that was changed
and did not run, or data that was changed later, is refused and not run by mistake.
"""

from __future__ import annotations

import ast
import builtins
import importlib.util
import symtable
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Final

from tidegate.api.code.code import load_pipeline
from tidegate.api.pipeline import Pipeline
from tidegate.errors import PipelineError
from tidegate.message_text import clause

HEADER: Final = '"""Written by tidegate from the cells of a notebook. A run writes it again."""'
_REMEDY: Final = "Run the cells in their order again, or move the pipeline into a file."
_DECLARES: Final = (
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.Import,
    ast.ImportFrom,
    ast.Assign,
    ast.AnnAssign,
)
"""The statements that may be copied. A block of `if`, `try` or `with` is not, because its outcome
may depend on the session."""
_OF_IPYTHON: Final = frozenset({"display", "get_ipython"})
"""Functions that only a session of IPython has."""
_TRANSPARENT: Final = frozenset({"capture", "time"})
"""Magic commands of a whole cell that run the cell as it is."""


@dataclass(frozen=True, slots=True)
class Statement:
    """A top-level statement of a cell that has run."""

    cell: int
    """The number of the cell in the order of execution, as in `In [3]`."""
    node: ast.stmt
    source: str

    @property
    def declares(self) -> bool:
        """Whether the statement may be copied into a module."""
        return isinstance(self.node, _DECLARES)


def write_cells(pipeline: type[Pipeline], namespace: Mapping[str, Any], folder: Path) -> Path:
    """Write the module of a pipeline of this session into `folder`, and return its file.

    `namespace` is that of the session. PipelineError if there is no history of cells, or if the
    class depends on something that no file can declare.
    """
    cells = executed_cells()
    if cells is None:
        raise PipelineError(
            f"{pipeline.__name__} was typed into a Python prompt, whose text no other process can "
            "import. Put the class into a file such as totals.py, or use a notebook."
        )
    statements = list(top_level_statements(cells))
    chosen = select(pipeline.__name__, statements, namespace)
    name = f"{str(pipeline.pipeline_name).replace('-', '_')}_cells"
    file = folder / f"{name}.py"
    _write(file, module_text(chosen))
    check_same(_imported(file, pipeline.__name__), namespace, chosen)
    return file


def executed_cells() -> Sequence[str] | None:
    """Return the source of each cell that this session has run, by number, or None without IPython.

    Magic commands are already translated to Python.
    """
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if shell is None:
        return None
    cells: Sequence[str] = shell.history_manager.input_hist_parsed
    return cells


def top_level_statements(cells: Iterable[str]) -> Iterator[Statement]:
    """Yield the statements of all cells. A cell that is not Python has not run, and has none."""
    for number, cell in enumerate(cells):
        try:
            nodes = ast.parse(cell).body
        except SyntaxError:
            continue
        lines = cell.splitlines(keepends=True)
        for node in nodes:
            if inner := _cell_of_magic(node):
                yield from top_level_statements([""] * number + [inner])
                continue
            decorators = getattr(node, "decorator_list", ())
            if decorators:
                source = "".join(lines[decorators[0].lineno - 1 : node.end_lineno])
            else:
                source = ast.get_source_segment(cell, node) or ""
            yield Statement(number, node, source.rstrip())


def _cell_of_magic(node: ast.stmt) -> str:
    """Return the text below a magic command such as `%%time`, or an empty text."""
    match node:
        case ast.Expr(
            ast.Call(
                func=ast.Attribute(attr="run_cell_magic"),
                args=[ast.Constant(name), ast.Constant(), ast.Constant(str(text))],
            )
        ) if name in _TRANSPARENT:
            return text
    return ""


# --- selection ----------------------------------------------------------------------------------


def select(
    name: str, statements: Sequence[Statement], namespace: Mapping[str, Any]
) -> list[Statement]:
    """Return the statements that declare `name` and all that it needs, in the order of execution.

    PipelineError if a needed name has no declaration that can be copied.
    """
    last = {bound: i for i, each in enumerate(statements) for bound in _bound(each)}
    stars = [i for i, each in enumerate(statements) if _is_star_import(each.node)]
    chosen: set[int] = {i for i, each in enumerate(statements) if _is_future_import(each.node)}
    seen, todo = {name}, [(name, name)]
    while todo:
        wanted, user = todo.pop()
        position = last.get(wanted)
        if position is None:
            if wanted in _OF_IPYTHON or (wanted in namespace and not hasattr(builtins, wanted)):
                if not stars:
                    raise PipelineError(
                        f"{user} uses {wanted!r}, which no cell of this notebook declares. Declare "
                        "it in a cell by an assignment, a def, a class or an import."
                    )
                chosen.update(stars)
            continue
        statement = statements[position]
        if not statement.declares:
            raise PipelineError(
                f"{user} uses {wanted!r}, which cell {statement.cell} sets in a block such as `if`,"
                " `for` or `with`. The processes of a job need a plain declaration: an assignment,"
                " a def, a class or an import at the top level of a cell."
            )
        chosen.add(position)
        for used in _used(statement) - seen:
            seen.add(used)
            todo.append((used, wanted))
    return [statements[i] for i in sorted(chosen)]


def _bound(statement: Statement) -> set[str]:
    """Return the names of the session that a statement sets, in a block too."""
    table = symtable.symtable(statement.source, "cell", "exec")
    return {
        each.get_name() for each in table.get_symbols() if each.is_assigned() or each.is_imported()
    }


def _used(statement: Statement) -> set[str]:
    """Return the names of the session that a statement reads, also in its functions."""
    table = symtable.symtable(statement.source, "cell", "exec")
    names = {each.get_name() for each in table.get_symbols() if each.is_referenced()}
    tables = list(table.get_children())
    while tables:
        inner = tables.pop()
        names |= {each.get_name() for each in inner.get_symbols() if each.is_global()}
        tables += inner.get_children()
    # Annotations may be texts, which record classes read as types.
    for node in ast.walk(statement.node):
        annotation = getattr(node, "annotation", None) or getattr(node, "returns", None)
        if isinstance(annotation, ast.expr):
            names |= _names_in(annotation)
    return names


def _names_in(annotation: ast.expr) -> set[str]:
    names = set()
    for node in ast.walk(annotation):
        if isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            try:
                names |= _names_in(ast.parse(node.value, mode="eval").body)
            except SyntaxError:
                continue  # a text that names no type, as in Literal["a b"]
    return names


def _is_future_import(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"


def _is_star_import(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and node.names[0].name == "*"


# --- the file -----------------------------------------------------------------------------------


def module_text(chosen: Sequence[Statement]) -> str:
    """Return the text of the module, with a comment where the statements of a cell begin."""
    # Imports of __future__ must be first, in whatever cell they were.
    ordered = sorted(chosen, key=lambda each: not _is_future_import(each.node))
    lines, cell = [HEADER], -1
    for each in ordered:
        if each.cell != cell:
            lines += ["", f"# In [{each.cell}]"]
            cell = each.cell
        lines.append(each.source)
    return "\n".join(lines) + "\n"


def _write(file: Path, text: str) -> None:
    if file.exists() and not file.read_text(encoding="utf-8").startswith(HEADER):
        raise PipelineError(
            f"The cells of the notebook would be written to {file}, which is a file of your own. "
            "Rename it, or give the pipeline another name."
        )
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise PipelineError(
            f"The cells of the notebook cannot be written to {file}: {error.strerror}. Start the "
            "notebook in a folder of your own."
        ) from error
    # Python takes a compiled file for fresh if size and second of the source are equal.
    Path(importlib.util.cache_from_source(str(file))).unlink(missing_ok=True)


def _imported(file: Path, class_name: str) -> Mapping[str, Any]:
    """Import the module again and return its namespace. An earlier run may have imported it."""
    sys.modules.pop(file.stem, None)
    importlib.invalidate_caches()
    try:
        load_pipeline(f"{file}:{class_name}", file.parent)
    except PipelineError as error:
        if error.__cause__ is None:
            raise
        raise PipelineError(
            f"The cells of {class_name} do not run in the order of their last execution: "
            f"{clause(error)}. "
            f"{_REMEDY}"
        ) from error.__cause__
    return vars(sys.modules[file.stem])


# --- comparison ---------------------------------------------------------------------------------


def check_same(
    written: Mapping[str, Any], namespace: Mapping[str, Any], chosen: Sequence[Statement]
) -> None:
    """Raise PipelineError if a name of the module is not what the session has under that name.

    Functions and methods are compared by their code, and data by its value.
    """
    for statement in chosen:
        if isinstance(statement.node, ast.Import | ast.ImportFrom):
            continue
        for name in sorted(_bound(statement)):
            if not _same(written.get(name), namespace.get(name)):
                raise PipelineError(
                    f"{name!r} of this session is not what cell {statement.cell} declares: a cell "
                    "has changed it later, or has failed before its end. Declare it in one "
                    f"place. {_REMEDY}"
                )


def _same(written: object, live: object) -> bool:
    if isinstance(written, FunctionType) and isinstance(live, FunctionType):
        return _code_key(written.__code__) == _code_key(live.__code__)
    if isinstance(written, type) and isinstance(live, type):
        return _members_of(written) == _members_of(live)
    if isinstance(
        written, bool | int | float | str | bytes | list | tuple | dict | set | frozenset
    ):
        # Records in it are of two classes, so their texts are compared.
        return written == live or repr(written) == repr(live)
    return type(written).__name__ == type(live).__name__


def _members_of(class_: type) -> dict[str, object]:
    """Return the members of a class: the code of its methods, and the names of all others."""
    return {
        name: _code_key(value.__code__) if isinstance(value, FunctionType) else None
        for name, value in vars(class_).items()
        if isinstance(value, FunctionType) or not name.startswith("__")
    }


def _code_key(code: CodeType) -> object:
    """Return what a function does, without its place in a file."""
    constants = tuple(
        _code_key(each) if isinstance(each, CodeType) else (type(each).__name__, each)
        for each in code.co_consts
    )
    return code.co_code, code.co_names, code.co_varnames, code.co_freevars, constants
