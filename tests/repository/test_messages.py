"""The form of the messages that a user reads: a capital letter first, a full stop last, and a noun
in the singular behind a count of one.

Goal: every error reads as sentences. Method: the source of the framework is parsed, and the text of
each error of `tidegate.errors` is put together from its literals, with `{...}` for each value. A
text in a variable, or from a function of the same module, is found too.

The rule has exceptions, because a capital letter would change a name and a full stop a command:

- A message may begin with a name, an option or a location: `batch=0`, `checkpoint.dir`, `{where}`.
- A message may end with a command after a colon, because users copy it: `Use: tidegate new totals`.
- A message may end with the text of another error, of Kafka or of the operating system.

`InternalError` is left out. It reports a bug, and its text is for developers.
"""

from __future__ import annotations

import ast
import functools
import itertools
import re
from collections import Counter
from collections.abc import Iterator, Sequence

import pytest

from tests.repository.test_tidy import Module, modules, parsed

FOR_DEVELOPERS = "InternalError"
WORD = re.compile(r"[a-z][a-z'-]*[,;:.]?(?=\s|$)")
"""A lower-case word. An option (`batch=`), a setting (`checkpoint.dir`) or a call is not one."""

COMMAND = re.compile(r"(?:Use|Example|Install it|Ask again|[Aa]bort it with): [^.]*$")
"""A command or an example at the end, which has no full stop."""

SENTENCES = re.compile(
    r"\b(?:advice|cause|changes|error|errors|event|example|has|help|hint|instead|"
    r"lines|offered|reason|refusal|refused|remedy|rights|statement|tail|why)\b"
)
"""Words in the names of values that are sentences, or lines of a log, with an end of their own."""

PREFIX = "tidegate: "
"""The name that a command prints before a message of its own."""

OPEN, CLOSE = "\N{WHITE SQUARE WITH LEFTWARDS TICK}", "\N{WHITE SQUARE WITH RIGHTWARDS TICK}"
"""The marks around a value, in a text that may have braces of its own."""

COUNT = re.compile(
    r"^len\(.*\)$|(?:^|[._])(?:completed|count|dropped|failures|left|letters|levels|missing|"
    r"needed|offsets(?:_left)?|parallelism|partitions|records(?:_in|_out)?|replicas|restarts|"
    r"skipped|slots|tasks|waves|written)$"
)
"""A value that is a count, by its name."""

PLURAL = re.compile(r"(?! (?:bytes|has|is|its|was)\b) (?:[a-z-]+ )?(?!is\b|its\b)[a-z]+s\b")
"""A noun in the plural, perhaps behind an adjective. A text of one byte does not occur."""

DEPTH_MAX = 2
"""The depth to which variables and functions are looked up in one another."""


def class_names(tree: ast.AST) -> Iterator[tuple[str, set[str]]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield node.name, {name(base) for base in node.bases}


def name(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


@functools.cache
def errors() -> frozenset[str]:
    """The names of TidegateError and of all classes below it, in any module of the framework."""
    known = {"TidegateError"}
    classes = [each for module in framework() for each in class_names(module.tree)]
    while True:
        more = {of for of, bases in classes if bases & known} - known - {FOR_DEVELOPERS}
        if not more:
            return frozenset(known)
        known |= more


def framework() -> list[Module]:
    return [module for module in modules() if module.in_framework]


class Messages:
    """The messages of one module, each with the line of the call that makes the error."""

    def __init__(self, tree: ast.Module) -> None:
        self._tree = tree
        self._functions = functions_of(tree)

    def found(self, kinds: frozenset[str]) -> Iterator[tuple[int, str]]:
        for scope in (*self._functions.values(), self._tree):
            for node in own_nodes(scope):
                if not (isinstance(node, ast.Call) and node.args):
                    continue
                if name(node.func) in kinds:
                    yield from ((node.lineno, text) for text in self._texts(node.args[0], scope))
                elif name(node.func) == "print":
                    for text in self._texts(node.args[0], scope):
                        if text.startswith(PREFIX):
                            yield node.lineno, text.removeprefix(PREFIX)

    def _texts(self, value: ast.expr, scope: ast.AST, depth: int = 0) -> Iterator[str]:
        """Every text that the expression may have."""
        match value:
            case ast.Constant(value=str(text)):
                yield text
            case ast.JoinedStr(values=parts):
                yield from self._joined(parts, scope, depth)
            case ast.BinOp(op=ast.Add(), left=left, right=right):
                yield from self._joined([left, right], scope, depth)
            case ast.IfExp(body=body, orelse=orelse):
                yield from self._texts(body, scope, depth)
                yield from self._texts(orelse, scope, depth)
            case ast.Name() | ast.Call() if depth < DEPTH_MAX and (
                known := self._known(value, scope)
            ):
                for each, where in known:
                    yield from self._texts(each, where, depth + 1)
            case _:
                yield f"{OPEN}{ast.unparse(value)}{CLOSE}"

    def _joined(self, parts: Sequence[ast.expr], scope: ast.AST, depth: int) -> Iterator[str]:
        """The texts of the parts behind one another. A value in a text is not looked up."""
        choices = []
        for part in parts:
            if not isinstance(part, ast.FormattedValue):
                choices.append([*self._texts(part, scope, depth)])
            elif isinstance(part.value, ast.IfExp):
                choices.append([*self._texts(part.value, scope, DEPTH_MAX)])
            else:
                choices.append([f"{OPEN}{ast.unparse(part.value)}{CLOSE}"])
        yield from map("".join, itertools.product(*choices))

    def _known(self, value: ast.Name | ast.Call, scope: ast.AST) -> list[tuple[ast.expr, ast.AST]]:
        """The values of the variable, or those that the function returns; empty if not known."""
        if isinstance(value, ast.Name):
            return [(each, scope) for each in assigned(value.id, scope, self._tree)]
        called = name(value.func)
        function = self._functions.get(called) or functions().get(called)
        if function is None:
            return []
        returned = (node for node in own_nodes(function) if isinstance(node, ast.Return))
        texts = (node.value for node in returned if node.value is not None)
        nothing = (ast.Constant, ast.JoinedStr, ast.BinOp, ast.IfExp)
        return [
            (each, function) for each in texts if isinstance(each, nothing) and not is_none(each)
        ]


def is_none(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is None


def functions_of(tree: ast.Module) -> dict[str, ast.FunctionDef]:
    return {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@functools.cache
def functions() -> dict[str, ast.FunctionDef]:
    """The functions of the framework whose names are unique there."""
    every = [item for module in framework() for item in functions_of(module.tree).items()]
    times = Counter(of for of, _ in every)
    return {of: function for of, function in every if times[of] == 1}


def own_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a function or module, without those of the functions in it."""
    for node in ast.iter_child_nodes(scope):
        yield node
        if not isinstance(node, ast.FunctionDef):
            yield from own_nodes(node)


def assigned(of: str, scope: ast.AST, tree: ast.Module) -> list[ast.expr]:
    """The values that a variable of the function, or else of the module, is set to."""
    for where in (scope, tree):
        found: list[ast.expr] = []
        for node in own_nodes(where):
            targets = node.targets if isinstance(node, ast.Assign) else []
            if isinstance(node, ast.AnnAssign):
                targets = [node.target]
            value = getattr(node, "value", None)
            if value is not None and of in map(name, targets):
                found.append(value)
        if found:
            return found
    return []


def complaint(text: str) -> str | None:
    if WORD.match(text):
        return "begins with a lower-case word"
    last = re.search(f"{OPEN}([^{OPEN}]*){CLOSE}$", text)
    if last is not None:
        if COMMAND.search(re.sub(f"{OPEN}[^{CLOSE}]*{CLOSE}", "VALUE", text)):
            return None
        words = re.sub("[^a-z]", " ", last[1].lower())
        return None if SENTENCES.search(words) else "ends with a value: write a full stop behind it"
    if not text or text.rstrip().endswith((".", ".)")) or COMMAND.search(text):
        return None
    return "lacks the full stop at its end"


def complaints(tree: ast.Module) -> Iterator[str]:
    for line, text in Messages(tree).found(errors()):
        if wrong := complaint(text):
            yield f"{line}: {text.replace(OPEN, '{').replace(CLOSE, '}')!r} {wrong}"


def test_every_message_begins_with_a_capital_letter_and_ends_with_a_full_stop() -> None:
    wrong = [f"{module.path}:{each}" for module in framework() for each in complaints(module.tree)]
    assert not wrong, "\n".join(sorted(set(wrong)))


def fixed_plurals(tree: ast.Module) -> Iterator[str]:
    """The texts in which a count stands before a plural, as in `{restarts} restarts`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            for value, text in itertools.pairwise(node.values):
                if (
                    isinstance(value, ast.FormattedValue)
                    and isinstance(text, ast.Constant)
                    and COUNT.search(ast.unparse(value.value))
                    and PLURAL.match(str(text.value))
                ):
                    yield f"{node.lineno}: write counted({ast.unparse(value.value)}, ...)"


def test_a_count_of_one_has_a_noun_in_the_singular() -> None:
    wrong = [
        f"{module.path}:{each}"
        for module in framework()
        if module.room != "framework/sim"  # its texts are for developers
        for each in fixed_plurals(module.tree)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("f'{report.restarts} restarts'", 1),
        ("f'{len(lines):,} lost lines'", 1),
        ("f'{counted(report.restarts, chr(0))} restarts'", 0),
        ("f'{len(payload)} bytes of {topic}'", 0),
        ("f'{name} reads records'", 0),
    ],
)
def test_planted_plural_is_found(source: str, found: int) -> None:
    assert len(list(fixed_plurals(parsed(source)))) == found


PLANTED = {
    "a lower-case word": "raise RefusedError('the topic is gone.')",
    "no full stop": "raise ConfigError(f'Topic {topic} is gone')",
    "a value at the end": "raise ConfigError(f'The topic is {topic}')",
    "in a variable": "def f():\n    text = 'the topic is gone.'\n    raise RefusedError(text)",
    "from a function": "def f():\n    raise RefusedError(g())\ndef g():\n    return 'Gone'",
    "in one of two": "raise RefusedError('Gone.' if topic else 'gone.')",
    "of a derived class": "raise KafkaUnavailableError('no broker answers.')",
    "printed by a command": "print('tidegate: no topic fits.', file=sys.stderr)",
}
ACCEPTED = (
    "raise RefusedError(f'Topic {topic!r} is gone.')",
    "raise ConfigError('checkpoint.dir is not a folder. Use: tidegate run --help')",
    "raise ConfigError(f'batch={batch}: a batch has at least one record.')",
    "raise KafkaError(f'The client cannot be made: {error}')",
    "raise ValueError('no message of its own')",
    "raise InternalError('a bug')",
)


@pytest.mark.parametrize("planted", PLANTED)
def test_planted_message_is_found(planted: str) -> None:
    assert len(list(complaints(parsed(PLANTED[planted])))) == 1


@pytest.mark.parametrize("source", ACCEPTED)
def test_exceptions_are_accepted(source: str) -> None:
    assert not list(complaints(parsed(source)))


def test_most_errors_of_the_framework_are_found() -> None:
    found = sum(len(list(Messages(module.tree).found(errors()))) for module in framework())
    assert found > 400
