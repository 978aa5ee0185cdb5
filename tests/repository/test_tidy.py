"""Reads the whole tree and says what is untidy: sizes, names, prose, calls, words of a machine.

Goal: what a reviewer would have to say again and again is said by a test. Method: every rule is a
function from one parsed module to complaints, shown to catch a bad example, then run over the tree.
What ruff already says (asserts, long lines in part, unused names) is not said again here.
"""

from __future__ import annotations

import ast
import functools
import io
import re
import shutil
import subprocess
import tokenize
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULE_LINES_MAX = 600
FUNCTION_LINES_MAX = 70
COLUMNS_MAX = 100
PAGE_BYTES_MAX = 25_000  # of ARCHITECTURE.md
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
    "framework/tidegate/api/state/field_check.py",
    "framework/tidegate/api/records/converters.py",
    "framework/tidegate/api/records/finite.py",
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
        """The room of a module of the framework, behind `framework/`; else the top folder."""
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


@functools.cache
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


# --- pointers -----------------------------------------------------------------------------------

POINTER = re.compile(r"`((?:[\w.*-]+/)*[\w.*-]+)/?(?:::(\w+))?`")
ENDINGS = {".py", ".md", ".toml", ".lock", ".jars", ".template"}  # others are of users, mostly
FOR_USERS = ("README.md", "docs/guides/", "docs/quickstart.md", "docs/reference/", "docs/tutorial/")
NOT_HERE = {
    "tidegate.toml": "the settings of a user",
    "job.py": "the pipeline of a test's project",
    "hourly-totals.py": "an example of a user's file that is no module",
    "shown/good.py": "a file of a test's own package",
    "sql/connect/client/reattach.py": "a file of pyspark",
}
UNREAD = {
    "CHANGELOG.md": "names files as they were at that time",
    "docs/evidence/kill-matrix.md": "names cells of the matrix in the form of paths",
}


def pointers(path: Path, text: str) -> Iterator[tuple[str, str]]:
    """The names in backticks in the prose of a file that may be paths, each with the test in it."""
    if path.suffix == ".py":
        found = [str(_constant(each)) for each in walked(text) if isinstance(each, ast.Expr)]
        if re.search(r"#.*`", text):
            tokens = tokenize.generate_tokens(io.StringIO(text).readline)
            found += [each.string for each in tokens if each.type == tokenize.COMMENT]
    elif path.suffix == ".toml":
        found = [line.partition("#")[2] for line in text.splitlines()]
    else:
        found = re.split(r"^ *```.*?^ *```$", text, flags=re.MULTILINE | re.DOTALL)
    for match in POINTER.finditer("\n".join(found)):
        yield match[1], match[2] or ""


def _constant(node: ast.Expr) -> object:
    return node.value.value if isinstance(node.value, ast.Constant) else ""


def leads_nowhere(home: Path, name: str, test: str = "") -> bool:
    """Whether a name in backticks, in the file `home`, is a path at which nothing is.

    A path starts in the folder of the file, in a folder above it, or in `framework/tidegate`. In a
    page, the end of a path is enough.
    """
    is_file = Path(name).suffix in ENDINGS and not name.startswith(".")
    bases = [ROOT / each for each in (*home.parents, Path("framework/tidegate"))]
    if name in NOT_HERE or not (is_file or "/" in name):
        return False
    if "/" not in name and home.as_posix().startswith(FOR_USERS):
        return False
    if not is_file and not any((base / name.partition("/")[0]).is_dir() for base in bases):
        return False
    module, _, function = name.partition(".test_")
    if function:  # `folder/test_module.test_function`
        name, test = module, f"test_{function}"
    if home.suffix == ".md" and is_file:
        found = [path for path in text_files() if f"/{path}".endswith(f"/{name}")]
    else:
        ways = [base / f"{name}{end}" for base in bases for end in ("", ".py")]
        found = [path for way in ways for path in ROOT.glob(str(way.relative_to(ROOT)))]
    return not any(not test or f"def {test}(" in path.read_text(encoding="utf-8") for path in found)


POINTERS = [
    ("framework/tidegate/slot/x.py", '"""See `main.py`, `drivers/rpc` and `ports/kv.py`."""', 0),
    ("framework/tidegate/slot/x.py", "x = 1  # as `taskmanager/service.py`", 1),
    ("framework/tidegate/slot/x.py", '"""See `checkpoint/retention` and `system.py`."""', 2),
    ("framework/tidegate/slot/x.py", "x = '`gone.py`'  # `a/b` and `.py` are no files here", 0),
    ("tests/x.py", '"""`test_walls.py` is not in this folder."""', 1),
    ("tests/repository/x.py", '"""`test_walls.py`, `test_*.py`, `tests/repository/`."""', 0),
    ("docs/internals/x.md", "`test_walls.py`, `docs/gone.md`\n```sh\n`gone.md`\n```\n", 1),
    ("docs/x.md", "`test_walls.py::test_tidegate_has_no_import_cycle`, `test_walls.py::test_x`", 1),
    ("docs/guides/x.md", "Write `orders.py`. See `pipelines/gone.py`.", 1),
    ("x.toml", "a = '`gone.py`'  # `gone.py`", 1),
]


@pytest.mark.parametrize(("path", "text", "count"), POINTERS)
def test_path_in_backticks_that_leads_nowhere_is_found(path: str, text: str, count: int) -> None:
    found = [each for each in pointers(Path(path), text) if leads_nowhere(Path(path), *each)]
    assert len(found) == count, found


def test_each_path_in_backticks_exists() -> None:
    wrong, seen = [], set()
    for file in text_files():
        path = file.relative_to(ROOT)
        if path.suffix in {".py", ".md", ".toml"} and path.as_posix() not in UNREAD:
            for name, test in pointers(path, file.read_text(encoding="utf-8")):
                seen.add(name)
                if leads_nowhere(path, name, test):
                    wrong.append(f"{path}: `{name}{'::' * bool(test)}{test}`")
    assert not wrong, "\n" + "\n".join(wrong)
    assert seen > NOT_HERE.keys()


def test_architecture_page_leaves_to_docstrings_what_one_module_does() -> None:
    size = (ROOT / "ARCHITECTURE.md").stat().st_size
    assert size <= PAGE_BYTES_MAX, f"{size} bytes: move details to docstrings or docs/internals"


# --- commits ------------------------------------------------------------------------------------

SUBJECT_MAX = 72
UNCHECKED = "8cef86a3b0e04df027bf68f33d5059986966c472"
"""The newest commit when the rule was made. Older ones may have longer subjects."""


def long_subjects(folder: Path, unchecked: str = UNCHECKED) -> list[str]:
    """The subjects of the commits after one that are too long.

    A shallow clone that does not hold this commit can check its newest commit only. Git's own
    subjects of merges do not count. OSError if git is not installed, or the folder has no history.
    """

    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(folder), *words], check=False, capture_output=True, text=True
        )
        if done.returncode:
            raise OSError(done.stderr.strip())
        return done.stdout

    if Path(git("rev-parse", "--show-toplevel").strip()) != folder.resolve():
        raise OSError(f"{folder} is a folder of another repository.")
    is_shallow = git("rev-parse", "--is-shallow-repository").strip() == "true"
    which = ["-1"] if is_shallow else [f"{unchecked}..HEAD"]
    subjects = git("log", "--no-merges", "--format=%s", *which).splitlines()
    return [each for each in subjects if len(each) > SUBJECT_MAX]


def test_subject_of_each_commit_is_short() -> None:
    try:
        found = long_subjects(ROOT)
    except OSError as error:
        pytest.skip(f"this tree has no history: {error}")
    assert not found, f"more than {SUBJECT_MAX} characters, shorten with git commit --amend"


@pytest.fixture
def history(tmp_path: Path) -> Path:
    """A repository with a long subject, a short one and a long one."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    own = {"user.name": "a", "user.email": "a@b.c", "commit.gpgsign": "false"}
    git = ["git", "-C", str(tmp_path)]
    for name, value in own.items():
        git += ["-c", f"{name}={value}"]
    subprocess.run([*git, "init", "--quiet"], check=True)
    for subject in ("a" * 73, "b" * 72, "c" * 73):
        commit = ["commit", "--quiet", "--allow-empty", "--message", subject]
        subprocess.run([*git, *commit], check=True)
    return tmp_path


def test_long_subjects_after_a_commit_are_found_in_a_shallow_clone_too(
    history: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    assert long_subjects(history, "HEAD~2") == ["c" * 73]
    assert long_subjects(history, "HEAD") == []
    clone = tmp_path_factory.mktemp("clone")
    shallow = ["git", "clone", "--quiet", "--depth", "2", f"file://{history}", str(clone)]
    subprocess.run(shallow, check=True, capture_output=True)
    assert long_subjects(clone, "0" * 40) == ["c" * 73]


def test_folder_without_a_history_of_its_own_is_not_judged(history: Path) -> None:
    (history / "below").mkdir()
    with pytest.raises(OSError, match="another repository"):
        long_subjects(history / "below")


def test_every_test_listed_in_bugs_found_exists() -> None:
    page = (ROOT / "docs" / "evidence" / "bugs-found.md").read_text(encoding="utf-8")
    named = re.findall(r"`(test_\w+)\.(test_\w+)`", page)
    assert len(named) > 15
    for module, name in named:
        homes = [*ROOT.glob(f"tests/**/{module}.py"), *ROOT.glob(f"integration/**/{module}.py")]
        assert any(f"def {name}(" in home.read_text(encoding="utf-8") for home in homes), name
