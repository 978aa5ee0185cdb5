"""Reads the whole tree and says what is untidy: sizes, names, prose, calls, words of a machine.

Goal: what a reviewer would have to say again and again is said by a test. Method: every rule is a
function from one parsed module to complaints, shown to catch a bad example, then run over the tree.
What ruff already says (asserts, long lines in part, unused names) is not said again here.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULE_LINES_MAX = 600
FUNCTION_LINES_MAX = 70
COLUMNS_MAX = 100
WORDS_MIN = 6  # fewer is a title and no sentence

BANNED_IMPORTS = {"pickle", "cloudpickle", "dill", "marshal", "shelve"}
BANNED_NAMES = {"utils", "util", "helpers", "misc", "common"}
# In pieces, so that this file does not complain of itself.
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:home|roo" r"t|wor" r"k)/")
REGISTRY = re.compile(r"(?:pypi|pythonhosted|maven|docker|ghcr|quay|jfrog)\.(?:org|io|com)\b")
TRACKER = re.compile(r"\bissue #?\d", re.IGNORECASE)
SKIPPED = {"LICENSE"}
COMMANDS = {"framework/cli", "framework/terminal", "framework/txn"}  # they print
GENERATES_CODE = {  # from templates of our own, never from text of a user or of the network
    "framework/tidegate/api/field_check.py",
    "framework/tidegate/api/converters.py",
    "framework/tidegate/api/finite.py",
    "framework/tidegate/dataplane/operators/stateless.py",
    "framework/tidegate/dataplane/windows/accumulators.py",
}


@dataclass(frozen=True)
class Module:
    path: Path
    text: str

    @property
    def tree(self) -> ast.Module:
        return parsed(self.text)

    @property
    def nodes(self) -> tuple[ast.AST, ...]:
        return walked(self.text)

    @property
    def room(self) -> str:
        """`framework/drivers` for a module of that room, else the top folder."""
        parts = self.path.parts
        if parts[0] != "framework":
            return parts[0]
        return f"framework/{parts[2].removesuffix('.py')}" if len(parts) > 2 else "framework"

    @property
    def in_framework(self) -> bool:
        return self.path.parts[0] == "framework"


@functools.cache
def parsed(text: str) -> ast.Module:
    return ast.parse(text)


@functools.cache
def walked(text: str) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(parsed(text)))


def text_files() -> list[Path]:
    hidden = {"__pycache__", "node_modules", "storages"}  # the last are of tests/golden
    tops = ["framework", "pipelines", "tests", "integration", "schemas", "docker", "docs"]
    tops += [".ci"]
    found = [path for path in ROOT.iterdir() if path.is_file() and path.name[0] != "."]
    for top in tops:
        found += [
            path
            for path in (ROOT / top).rglob("*")
            if path.is_file() and not hidden & set(path.parts) and path.suffix != ".pyc"
        ]
    return sorted(found)


@functools.cache
def modules() -> list[Module]:
    return [
        Module(path.relative_to(ROOT), path.read_text(encoding="utf-8"))
        for path in text_files()
        if path.suffix == ".py"
    ]


# --- rules --------------------------------------------------------------------------------------


def module_is_short(module: Module) -> Iterator[str]:
    lines = module.text.count("\n")
    if lines > MODULE_LINES_MAX:
        yield f"{lines} lines: split it by idea"


def functions_are_short(module: Module) -> Iterator[str]:
    for node in module.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or 0) - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                yield f"{node.lineno}: {node.name} has {lines} lines"


def lines_are_short(module: Module) -> Iterator[str]:
    for number, line in enumerate(module.text.splitlines(), 1):
        if len(line) > COLUMNS_MAX:
            yield f"{number}: {len(line)} columns"


def opens_with_prose(module: Module) -> Iterator[str]:
    prose = ast.get_docstring(module.tree) or ""
    if len(prose.split()) < WORDS_MIN or not re.search(r"[.!?)]$|[.!?:]\s", prose):
        yield "says not in a full sentence what it is"


def names_say_what(module: Module) -> Iterator[str]:
    for part in module.path.with_suffix("").parts:
        if part in BANNED_NAMES:
            yield f"`{part}` says nothing about what is in it"
    for node in module.nodes:
        if isinstance(node, ast.ClassDef) and re.search(r"Impl$|^_?Manager$", node.name):
            yield f"{node.lineno}: class {node.name} says not of what, or repeats its interface"


def imports_nothing_banned(module: Module) -> Iterator[str]:
    for node in module.nodes:
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        else:
            continue
        for name in names:
            if name.split(".")[0] in BANNED_IMPORTS:
                yield f"{node.lineno}: imports {name}"


def rooms_are_imported_and_not_the_front(module: Module) -> Iterator[str]:
    if not module.in_framework or module.path.parts[-2:] == ("tidegate", "__init__.py"):
        return
    for node in module.nodes:
        if isinstance(node, ast.Import) and any(alias.name == "tidegate" for alias in node.names):
            yield f"{node.lineno}: imports the public package; import the room"
        if isinstance(node, ast.ImportFrom) and node.module == "tidegate":
            package = ROOT / "framework" / "tidegate"
            for alias in node.names:
                if not any((package / f"{alias.name}{end}").exists() for end in ("", ".py")):
                    yield f"{node.lineno}: takes {alias.name} from the public package, not its room"


def calls_nothing_banned(module: Module) -> Iterator[str]:
    own_hash = {
        id(inner)
        for node in module.nodes
        if isinstance(node, ast.FunctionDef) and node.name == "__hash__"
        for inner in ast.walk(node)
    }
    for node in module.nodes:
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        allowed = called == "exec" and module.path.as_posix() in GENERATES_CODE
        if called in {"eval", "exec", "__import__"} and not allowed:
            yield f"{node.lineno}: {called}()"
        if not module.in_framework:
            continue
        if called == "hash" and id(node) not in own_hash:
            yield f"{node.lineno}: hash() differs between processes; route by key group"
        if called == "print" and module.room not in COMMANDS:
            yield f"{node.lineno}: print() outside the command line"
        if called == "time.sleep" and module.room != "framework/drivers":
            yield f"{node.lineno}: time.sleep() outside drivers; wait through a port"


def swallows_nothing(module: Module) -> Iterator[str]:
    broad = {"Exception", "BaseException", "TidegateError", "InternalError"}
    for node in module.nodes:
        if isinstance(node, ast.ExceptHandler):
            if node.type is None:
                yield f"{node.lineno}: a bare except"
                continue
            caught = {inner.id for inner in ast.walk(node.type) if isinstance(inner, ast.Name)}
            if caught & broad and all(_does_nothing(each) for each in node.body):
                yield f"{node.lineno}: swallows {ast.unparse(node.type)}"
        if (
            isinstance(node, ast.Call)
            and ast.unparse(node.func) in {"suppress", "contextlib.suppress"}
            and broad & {ast.unparse(each) for each in node.args}
        ):
            yield f"{node.lineno}: suppresses everything"


def _does_nothing(node: ast.stmt) -> bool:
    return isinstance(node, ast.Pass | ast.Continue) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    )


RULES: list[Callable[[Module], Iterator[str]]] = [
    module_is_short,
    functions_are_short,
    lines_are_short,
    opens_with_prose,
    names_say_what,
    imports_nothing_banned,
    rooms_are_imported_and_not_the_front,
    calls_nothing_banned,
    swallows_nothing,
]

PROSE = '"""A module that says in a sentence what it is."""\n'
BAD: list[tuple[Callable[[Module], Iterator[str]], str, str]] = [
    (module_is_short, "framework/tidegate/x.py", "x = 1\n" * 601),
    (functions_are_short, "tests/x.py", "def f():\n" + "    x = 1\n" * 70),
    (lines_are_short, "tests/x.py", "x" * 101),
    (opens_with_prose, "tests/x.py", '"""Some tests."""'),
    (opens_with_prose, "tests/x.py", "x = 1"),
    (names_say_what, "framework/tidegate/utils.py", PROSE),
    (names_say_what, "framework/tidegate/x.py", "class SinkImpl: ..."),
    (imports_nothing_banned, "tests/x.py", "import pickle"),
    (imports_nothing_banned, "tests/x.py", "from cloudpickle import dumps"),
    (rooms_are_imported_and_not_the_front, "framework/tidegate/slot/x.py", "import tidegate"),
    (
        rooms_are_imported_and_not_the_front,
        "framework/tidegate/slot/x.py",
        "from tidegate import Pipeline",
    ),
    (calls_nothing_banned, "framework/tidegate/graph/x.py", "group = hash(key) % 128"),
    (calls_nothing_banned, "framework/tidegate/graph/x.py", "print(1)"),
    (calls_nothing_banned, "framework/tidegate/graph/x.py", "time.sleep(1)"),
    (calls_nothing_banned, "tests/x.py", "eval('1')"),
    (swallows_nothing, "tests/x.py", "try: f()\nexcept: g()"),
    (swallows_nothing, "tests/x.py", "try: f()\nexcept Exception: pass"),
    (swallows_nothing, "tests/x.py", "try: f()\nexcept (ValueError, Exception): ..."),
    (swallows_nothing, "tests/x.py", "with suppress(Exception): f()"),
]


@pytest.mark.parametrize(("rule", "path", "text"), BAD)
def test_each_rule_catches_a_bad_example(
    rule: Callable[[Module], Iterator[str]], path: str, text: str
) -> None:
    assert list(rule(Module(Path(path), text)))


GOOD = PROSE + "class A:\n    def __hash__(self):\n        return hash(self.x)\n"


@pytest.mark.parametrize("rule", RULES)
def test_no_rule_complains_of_a_good_example(rule: Callable[[Module], Iterator[str]]) -> None:
    assert not list(rule(Module(Path("framework/tidegate/graph/x.py"), GOOD)))


def test_every_rule_has_a_bad_example() -> None:
    assert {rule for rule, _, _ in BAD} == set(RULES)


@pytest.mark.parametrize("rule", RULES)
def test_every_module_passes_the_tidiness_rule(rule: Callable[[Module], Iterator[str]]) -> None:
    complaints = [f"{module.path}: {each}" for module in modules() for each in rule(module)]
    assert not complaints, "\n" + "\n".join(complaints)


def test_no_file_mentions_a_local_path_registry_or_issue_tracker() -> None:
    complaints = []
    for path in text_files():
        if path.name in SKIPPED:
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if any(each.search(line) for each in (MACHINE_PATH, REGISTRY, TRACKER)):
                complaints.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:80]}")
    assert not complaints, "\n" + "\n".join(complaints)


@pytest.mark.parametrize("line", ["see /home" + "/me/x", "https://" + "pypi" + ".org/simple"])
def test_local_path_and_registry_url_are_recognised(line: str) -> None:
    assert MACHINE_PATH.search(line) or REGISTRY.search(line)


def test_lock_files_contain_no_url_and_no_package_index() -> None:
    locks = [*ROOT.glob("*.lock"), *(ROOT / "framework").rglob("*.jars")]
    assert len(locks) >= 4
    for path in locks:
        text = path.read_text(encoding="utf-8")
        assert "://" not in text, path
        assert "--index" not in text, path
        assert "--find-links" not in text, path


def test_every_test_listed_in_bugs_found_exists() -> None:
    page = (ROOT / "docs" / "evidence" / "bugs-found.md").read_text(encoding="utf-8")
    named = re.findall(r"`(test_\w+)\.(test_\w+)`", page)
    assert len(named) > 15
    for module, name in named:
        homes = [*ROOT.glob(f"tests/**/{module}.py"), *ROOT.glob(f"integration/**/{module}.py")]
        assert any(f"def {name}(" in home.read_text(encoding="utf-8") for home in homes), name
