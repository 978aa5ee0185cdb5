"""The selection of the files of a pipeline, which `archive.py` packs at a submit.

A pipeline in a single module has the whole folder of that module. A pipeline in a package has that
package, and every module and package next to it in the working folder. All of them belong to it,
because a function that no process has called yet may import them. In a folder that holds modules
but is not a package, only the modules belong to it.

Files of the pipeline that are left out are listed with the reason: hidden files, secrets, virtual
environments, files beyond a limit. A limit never leaves out a `.py` file of the pipeline itself: if
these are too many or too large, the submit is refused. This module reads no file content.
"""

from __future__ import annotations

import os
import re
import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Final

from tidegate.api.pipeline import Pipeline
from tidegate.errors import PipelineError
from tidegate.message_text import counted

FILES_MAX: Final = 10_000
"""Maximum number of files that are stored. If there are more, whole folders of data files are left
out, for example data sets."""

LISTED_MAX: Final = 1_000_000
"""Maximum number of files and folders that are listed, which takes some seconds. If there are more,
the pipeline shares its folder with other things, for example in a home folder."""

NESTED_MAX: Final = 2
"""Number of levels of a folder that are searched for a first module, if it is not a package."""

CACHE: Final = "cache"
"""The reason in the list for Python's caches, which are left out."""

TOOL: Final = "folder of a tool"
"""The reason in the list for hidden folders that editors, git and test tools make."""

ABOVE: Final = "a symbolic link to a folder above it"
"""The reason in the list for a symbolic link that leads into a circle."""

OUTSIDE: Final = "symbolic link out of the folder"
"""The reason in the list for a symbolic link whose target is not below the folder."""

_CACHES: Final = frozenset({"__pycache__", "node_modules"})
_TOOLS: Final = frozenset(
    {
        ".git",
        ".github",
        ".hypothesis",
        ".idea",
        ".ipynb_checkpoints",
        ".mypy_cache",
        ".pytest_cache",
        ".ruff_cache",
        ".venv",
        ".vscode",
    }
)
_SITE_PACKAGES: Final = frozenset({"site-packages", "dist-packages"})
_MODULES: Final = (".py", ".so", ".pyd")
"""Suffixes of modules; compiled modules have a platform tag before the suffix."""

_SECRET = re.compile(
    r".*\.(pem|key|p12|pfx|jks|keystore|kdbx|ppk|env)"
    r"|(secret|credential)s?(\..*)?"
    r"|id_(rsa|dsa|ecdsa|ed25519)",
    re.IGNORECASE,
)
"""Names of files that usually hold keys or passwords."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A file or folder that is not in the archive."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path} ({self.reason})"


@dataclass(slots=True)
class FoundFiles:
    """The files of a pipeline, by their path in the archive, and the files that are left out."""

    ours: frozenset[Path]
    """Files and folders that tidegate writes itself."""
    files: dict[str, Path] = field(default_factory=dict)
    spare: set[str] = field(default_factory=set)
    """Files next to the pipeline's package, which it has not imported until now."""
    named: set[str] = field(default_factory=set)
    """Data files that the pipeline names."""
    left_out: list[LeftOut] = field(default_factory=list)
    links: list[Path] = field(default_factory=list)
    """The symbolic links that are left out."""
    _seen: int = 0

    def walk(
        self, prefix: str, folder: Path, *, within: Path, above: tuple[Path, ...] = ()
    ) -> None:
        """Add all files below a folder. Symbolic links that lead out of `within` are left out."""
        real = Path(os.path.realpath(folder))
        for entry in self._entries(prefix, folder):
            name = f"{prefix}/{entry.name}" if prefix else entry.name
            path = Path(entry.path)
            reason = self._why_not(entry, real, within)
            if reason is not None:
                self._leave_out(name, entry, reason)
            elif not entry.is_dir():
                self.add(name, path)
            elif entry.is_symlink() and Path(os.path.realpath(path)) in (*above, real):
                self._leave_out(name, entry, ABOVE)
            else:
                self.walk(name, path, within=within, above=(*above, real))

    def add(self, name: str, path: Path) -> None:
        """Add a file, or list it as left out if it is not a regular file."""
        if path.is_file():  # not a socket, a pipe or a broken link
            self.files.setdefault(name, path)
        else:
            self.left_out.append(LeftOut(name, "no regular file"))

    def add_beside(self, folder: Path) -> None:
        """Add the modules and packages of the working folder that are not added yet."""
        known = set(self.files)
        packed = {PurePosixPath(name).parts[0] for name in known}
        within = Path(os.path.realpath(folder))
        for entry in self._entries("", folder):
            path = Path(entry.path)
            if entry.name in packed or not _importable(entry):
                continue
            reason = self._why_not(entry, within, within)
            if reason is not None:
                self._leave_out(entry.name, entry, reason)
            elif not entry.is_dir():
                self.add(entry.name, path)
            elif within.is_relative_to(os.path.realpath(path)):
                self._leave_out(entry.name, entry, ABOVE)
            elif (path / "__init__.py").is_file():
                self.walk(entry.name, path, within=Path(os.path.realpath(path)))
            else:
                self._walk_modules(entry.name, path, within)
        self.spare |= self.files.keys() - known

    def _walk_modules(self, prefix: str, folder: Path, within: Path) -> None:
        """Add the modules of a folder that is not a package.

        The modules of the folders and packages in it are added too.
        """
        real = Path(os.path.realpath(folder))
        for entry in self._entries(prefix, folder):
            name = f"{prefix}/{entry.name}"
            if not _importable(entry):
                continue
            reason = self._why_not(entry, real, within)
            if entry.is_symlink() and (entry.is_dir() or reason == OUTSIDE):
                # A link to a folder may lead into a circle.
                self._leave_out(name, entry, reason or "symbolic link to a folder")
            elif reason is None and entry.is_dir():
                self._walk_modules(name, Path(entry.path), within)
            elif reason is None:
                self.add(name, Path(entry.path))

    def _leave_out(self, name: str, entry: os.DirEntry[str], reason: str) -> None:
        self.left_out.append(LeftOut(name, reason))
        if entry.is_symlink():
            self.links.append(Path(entry.path))

    def _entries(self, prefix: str, folder: Path) -> list[os.DirEntry[str]]:
        """Return the entries of a folder, sorted by name.

        PipelineError if more than LOOKED_MAX entries were listed in all.
        """
        try:
            with os.scandir(folder) as entries:
                found = sorted(entries, key=lambda entry: entry.name)
        except OSError as error:
            self.left_out.append(LeftOut(prefix, f"cannot be read: {error.strerror}"))
            return []
        self._seen += len(found)
        if self._seen > LISTED_MAX:
            raise PipelineError(
                f"The code of a pipeline is stored at submit, and there are more than {LISTED_MAX} "
                f"files and folders in and around {folder}. Put the pipeline into a package or a "
                "folder of its own."
            )
        return found

    def _why_not(self, entry: os.DirEntry[str], parent: Path, within: Path) -> str | None:
        """Return why a file or folder is left out, or None; `parent` has no symbolic links."""
        name = entry.name
        if name.startswith("."):
            return TOOL if name in _TOOLS else "hidden"
        if name == "tidegate.toml":
            return "settings, which may hold passwords"
        if name in _CACHES or name.endswith((".pyc", ".pyo")):
            return CACHE
        if entry.is_dir():
            if name in _SITE_PACKAGES or Path(entry.path, "pyvenv.cfg").is_file():
                return "virtual environment"
        elif _SECRET.fullmatch(name) and not name.endswith(".py"):
            return "may hold a secret"
        try:
            name.encode()
        except UnicodeEncodeError:
            return "its name is not UTF-8"
        real = Path(os.path.realpath(entry.path)) if entry.is_symlink() else parent / name
        if real in self.ours:
            return "written by tidegate"
        if entry.is_symlink() and not real.is_relative_to(within):
            return OUTSIDE
        return None


def _importable(entry: os.DirEntry[str]) -> bool:
    """Check whether an import may find a module here: a module file, or a folder with modules."""
    if not entry.is_dir():
        stem, _, _ = entry.name.partition(".")
        return stem.isidentifier() and entry.name.endswith(_MODULES)
    return _holds_modules(entry, NESTED_MAX)


def _holds_modules(folder: os.DirEntry[str], depth: int) -> bool:
    if not folder.name.isidentifier() or folder.name in _CACHES:
        return False
    if Path(folder.path, "pyvenv.cfg").is_file():
        return False
    below = []
    try:
        with os.scandir(folder.path) as entries:
            for entry in entries:
                if entry.name.endswith(_MODULES):
                    return True
                if depth > 1 and entry.is_dir(follow_symlinks=False):
                    below.append(entry)
    except OSError:
        return True  # the later listing reports why the folder cannot be read
    return any(_holds_modules(each, depth - 1) for each in below)


def find_files(
    pipeline: type[Pipeline],
    folder: Path,
    *,
    root: Path | None = None,
    data_files: Iterable[str],
    ours: Iterable[Path],
) -> FoundFiles:
    """Find the files of a pipeline, without limits; the arguments are as in `archive.pack`."""
    imported_from = folder if root is None else root
    found = FoundFiles(ours=frozenset(Path(os.path.realpath(path)) for path in ours))
    top = pipeline.__module__.partition(".")[0]
    package: Sequence[str] = getattr(sys.modules[top], "__path__", ())
    for prefix, path in _roots(top, package, imported_from):
        if path.is_file():
            found.add(prefix, path)
        else:
            found.walk(prefix, path, within=Path(os.path.realpath(path)))
    if any(Path(path).parent == imported_from for path in package):
        found.add_beside(imported_from)
    for name in map(os.path.normpath, data_files):
        places = [each for each in (imported_from, folder) if (each / name).is_file()]
        if places and not name.startswith(("/", "..")):
            found.add(name, places[0] / name)
            found.named.add(name)
    return found


def _roots(top: str, package: Sequence[str], folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the path in the archive, and the file or folder, of what the pipeline has imported."""
    if package:
        yield from ((top, Path(root)) for root in package)
    else:
        file = Path(str(sys.modules[top].__file__))
        if _SITE_PACKAGES.isdisjoint(file.parts):
            yield "", file.parent
            return
        yield file.name, file
    for name, module in sorted(sys.modules.items()):
        if "." in name or name == top:
            continue
        for path in (*getattr(module, "__path__", ()), getattr(module, "__file__", None) or ""):
            if path and Path(path).parent == folder:  # a helper next to the package
                yield Path(path).name, Path(path)


def refuse_linked_modules(found: FoundFiles) -> None:
    """Raise PipelineError if the pipeline has imported a module through a link that is left out.

    Other processes import the stored files, and would not find it. A linked module that nothing has
    imported until now is only left out, because a folder may have files that are not used.
    """
    links = set(found.links)
    files = ((name, getattr(module, "__file__", None)) for name, module in sys.modules.items())
    for name, file in sorted((name, file) for name, file in files if links and file):
        path = Path(file).absolute()
        link = next((each for each in (path, *path.parents) if each in links), None)
        if link is not None:
            raise PipelineError(
                f"The module {name!r} is imported through {link}, a symbolic link to "
                f"{os.path.realpath(link)}. The files of a pipeline are stored with the job, and "
                "this link is not followed, so the job would not find the module. Put the files "
                "themselves in place of the link, or install the module as a package."
            )


# --- limits -------------------------------------------------------------------------------------


def limit_file_count(found: FoundFiles) -> None:
    """Leave out the files of whole folders until FILES_MAX files are left.

    Data files come first, from the folder with the most of them on. Files next to the package come
    after that, in the same order. Data files that the pipeline names stay. PipelineError if too
    many files are still left.
    """
    data = [name for name in found.files if not name.endswith(_MODULES)]
    for names in (set(data) - found.named, found.spare):
        folders: defaultdict[str, list[str]] = defaultdict(list)
        for name in names & found.files.keys():
            folders[PurePosixPath(name).parent.as_posix()].append(name)
        for folder, inside in sorted(folders.items(), key=lambda each: (-len(each[1]), each[0])):
            if len(found.files) <= FILES_MAX:
                return
            _leave_out(found, inside)
            reason = f"{counted(len(inside), 'file')}: more than {FILES_MAX} are not stored"
            found.left_out.append(LeftOut(folder, reason))
    if len(found.files) > FILES_MAX:
        raise PipelineError(
            f"The code of a pipeline is stored at submit, and there are more than {FILES_MAX} "
            "modules. Put the pipeline into a package or a folder of its own."
        )


def limit_size(found: FoundFiles, size_max: int) -> None:
    """Leave out files, the largest first, until the rest has at most `size_max` bytes.

    All files other than `.py` come first, then `.py` files next to the package. PipelineError if
    the `.py` files of the pipeline itself are larger.
    """
    sizes = {name: path.stat().st_size for name, path in found.files.items() if path.exists()}
    total = sum(sizes.values())
    order = sorted(sizes, key=lambda name: (name.endswith(".py"), -sizes[name], name))
    for name in order:
        if total <= size_max:
            return
        if name.endswith(".py") and name not in found.spare:
            continue
        _leave_out(found, [name])
        total -= sizes[name]
        reason = f"{sizes[name]} bytes: too large for job.max_code_size"
        found.left_out.append(LeftOut(name, reason))
    if total > size_max:
        raise PipelineError(
            f"The modules of the pipeline have {total} bytes together, more than job.max_code_size "
            f"allows ({size_max}). Put the pipeline into a package of its own, or raise the "
            "setting."
        )


def _leave_out(found: FoundFiles, names: Collection[str]) -> None:
    for name in names:
        del found.files[name]
