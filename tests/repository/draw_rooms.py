"""Draws the imports between the rooms of the package into ARCHITECTURE.md, and judges them.

A room is a folder of `framework/tidegate`, or a module next to those folders. An import counts if
it happens when the code runs, so also in a function, and by name (`import_module`). One for a type
checker only does not count. The order of the rooms is that of the layers in `pyproject.toml`.
`test_rooms.py` runs the judges. After a change of imports, draw again:

    python -m tests.repository.draw_rooms
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "ARCHITECTURE.md"
PACKAGE = "tidegate"
BEGIN = "<!-- The rooms, drawn by `python -m tests.repository.draw_rooms`. -->"
END = "<!-- End of the drawing. -->"
# Programs: another process runs such a module by its name, and no process imports it.
PROGRAMS = {"tidegate.role", "tidegate.cli.main", "tidegate.cli.dev_child"}

Import = tuple[str, str]
"""A module, and a module that it imports."""


# --- what is imported ---------------------------------------------------------------------------


@cache
def imports() -> frozenset[Import]:
    """All imports inside the package that happen when its code runs."""
    graph = grimp.build_graph(PACKAGE, exclude_type_checking_imports=True, cache_dir=None)
    found = {
        (each, imported)
        for each in graph.modules
        for imported in graph.find_modules_directly_imported_by(each)
    }
    for path in (ROOT / "framework" / PACKAGE).rglob("*.py"):
        parts = path.relative_to(ROOT / "framework").with_suffix("").parts
        module = ".".join(parts).removesuffix(".__init__")
        names = named_modules(path.read_text(encoding="utf-8"), graph.modules)
        found |= {(module, name) for name in names - {module}}
    return frozenset(found)


def named_modules(text: str, modules: Iterable[str]) -> set[str]:
    """The modules of which a file has the name as a text: `"tidegate.x.y"` or `"tidegate.x.y:f"`.

    Such a text is there for an import. A name of a program is there to start a process.
    """
    texts = {
        node.value.partition(":")[0]
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    return (texts & set(modules)) - PROGRAMS


def between(found: Iterable[Import], package: str) -> dict[Import, list[Import]]:
    """The imports between the rooms and modules that lie directly in a package, by these two."""
    depth = package.count(".") + 2
    arrows: dict[Import, list[Import]] = defaultdict(list)
    for each in sorted(found):
        ends = [".".join(name.split(".")[:depth]) for name in each]
        if all(end.startswith(f"{package}.") for end in ends) and ends[0] != ends[1]:
            arrows[ends[0], ends[1]].append(each)
    return dict(arrows)


# --- what is wrong ------------------------------------------------------------------------------


@cache
def layers() -> dict[str, list[list[str]]]:
    """The rooms of each package that has an order, the upper layers first, as import-linter has it.

    Rooms of one layer do not import each other, unless `:` stands between them.
    """
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    return {
        package: [re.findall(r"[\w:]+", re.sub(r"[()]", "", layer)) for layer in each["layers"]]
        for each in contracts
        if each["type"] == "layers"
        for package in each["containers"]
    }


def upward_arrows(found: Iterable[Import], package: str) -> Iterator[str]:
    """Imports from a lower layer of the package to a higher one, or to a neighbour in the layer."""
    rank: dict[str, int] = {}
    free = set()
    for number, layer in enumerate(layers()[package]):
        rank |= {f"{package}.{room}": number for room in layer if room != ":"}
        free |= {number} if ":" in layer else set()
    for (room, imported), modules in between(found, package).items():
        if room not in rank or imported not in rank:
            continue
        if rank[imported] < rank[room] or (rank[imported] == rank[room] and rank[room] not in free):
            yield _shown(room, imported, modules)


def circles(found: Iterable[Import]) -> Iterator[str]:
    """The shortest circle of each group of rooms and modules of a package that has one."""
    everything = list(found)
    packages = {name.rpartition(".")[0] for each in everything for name in each} - {""}
    for package in sorted(packages):
        arrows = between(everything, package)
        rings = [ring for room in {start for start, _ in arrows} if (ring := _ring(arrows, room))]
        seen: set[str] = set()
        for ring in sorted(rings, key=lambda each: (len(each), each)):
            if not seen & set(ring):
                steps = zip(ring, [*ring[1:], ring[0]], strict=True)
                yield f"{package}: " + ", ".join(_shown(*each, arrows[each]) for each in steps)
            seen |= set(ring)


def _ring(arrows: Iterable[Import], room: str) -> list[str]:
    """A shortest way along arrows from a room back to it, without its end; empty if none exists."""
    ends: dict[str, list[str]] = defaultdict(list)
    for start, end in arrows:
        ends[start].append(end)
    ways = deque([[room]])
    seen = set()
    while ways:
        way = ways.popleft()
        for end in ends[way[-1]]:
            if end == room:
                return way
            if end not in seen:
                seen.add(end)
                ways.append([*way, end])
    return []


def _shown(room: str, imported: str, modules: list[Import]) -> str:
    return (
        f"{room} imports {imported} ({', '.join(f'{each} -> {end}' for each, end in modules[:3])})"
    )


# --- the drawing --------------------------------------------------------------------------------


def drawing(found: Iterable[Import], order: list[list[str]]) -> str:
    """The rooms of the package as a Mermaid flow chart, without arrows that follow from others.

    The modules of a layer whose modules import each other are one box.
    """
    boxes = {room: room for layer in order for room in layer}
    for layer in order:
        if ":" in layer:
            boxes |= dict.fromkeys(layer, "shared")
    arrows = {
        (boxes[start.rpartition(".")[2]], boxes[end.rpartition(".")[2]])
        for start, end in between(found, PACKAGE)
    }
    arrows = {(start, end) for start, end in arrows if start != end}
    below = {start: _below(arrows, start) for start, _ in arrows}
    lines = ["```mermaid", "flowchart TD"]
    for layer in order:
        if ":" in layer:
            lines.append(f'  shared_["{"<br>".join(sorted(set(layer) - {":"}))}"]')
        else:
            lines += [f'  {room}_["{room}"]' for room in layer]
    for box in dict.fromkeys(boxes.values()):
        ends = [end for start, end in arrows if start == box]
        direct = sorted(end for end in ends if not any(end in below.get(o, ()) for o in ends))
        if direct:
            lines.append(f"  {box}_ --> " + " & ".join(f"{end}_" for end in direct))
    return "\n".join([*lines, "```"])


def _below(arrows: Iterable[Import], room: str) -> set[str]:
    """The rooms that a room reaches along the arrows."""
    seen: set[str] = set()
    todo = {room}
    while todo:
        todo = {end for start, end in arrows if start in todo} - seen
        seen |= todo
    return seen


def drawn(page: str) -> str:
    """The drawing that the page has."""
    return page.partition(BEGIN)[2].partition(END)[0].strip()


def with_drawing(page: str, new: str) -> str:
    """The page with another drawing."""
    before, _, rest = page.partition(BEGIN)
    after = rest.partition(END)[2]
    return f"{before}{BEGIN}\n{new}\n{END}{after}"


if __name__ == "__main__":
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(with_drawing(page, drawing(imports(), layers()[PACKAGE])), encoding="utf-8")
