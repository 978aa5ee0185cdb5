"""The check whether the file system of a folder can hold a journal.

The journal needs a `link` that reports correctly whether it created the name, and an `fsync` that
returns only when the data survives a crash. A client of NFS or SMB can repeat a `link` whose answer
was lost. It then reports that the name exists, although it created the name itself. These clients
also cache attributes, so two hosts can see different names. A FUSE file system behaves as its
program decides. So these file systems are refused unless the user allows them. The parser is pure;
`refuse_unsafe` reads the mounts from Linux.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, NamedTuple

from tidegate.errors import RefusedError

MOUNTS: Final = Path("/proc/self/mountinfo")
"""The file with the mounts that this process sees. Only Linux has it."""

NETWORK: Final = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ncpfs"})
KNOWN_FUSE: Final = frozenset({"fuse.fuse-overlayfs"})
"""The FUSE file systems that are safe. fuse-overlayfs is used by rootless containers: it passes
link and fsync to the local file system below.
"""

_POINT: Final = 4
"""The index of the mount point among the fields of a line."""
_ESCAPED = re.compile(r"\\([0-7]{3})")


class Mount(NamedTuple):
    """A line of mountinfo: the mount point, the type of the file system, and its source."""

    point: str
    kind: str
    source: str


def parse_mounts(text: str) -> list[Mount]:
    """Return the mounts of a mountinfo file, in its order: later mounts hide earlier ones.

    Spaces separate the fields, and a hyphen ends the optional fields; see proc(5).
    """
    found = []
    for line in text.splitlines():
        before, separator, after = line.partition(" - ")
        fields, rest = before.split(" "), after.split(" ")
        if separator and len(fields) > _POINT and len(rest) > 1:
            found.append(Mount(_unescaped(fields[_POINT]), rest[0], _unescaped(rest[1])))
    return found


def mount_of(folder: str, mounts: list[Mount]) -> Mount | None:
    """Return the mount that contains a folder; None if no mount does. The path must be absolute and
    without symbolic links.
    """
    best: Mount | None = None
    for mount in mounts:
        inside = folder == mount.point or folder.startswith(mount.point.rstrip("/") + "/")
        if inside and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best


def is_unsafe(kind: str) -> bool:
    """Return whether a file system of this kind may be unable to hold a journal."""
    fuse = kind == "fuse" or kind.startswith(("fuse.", "fuseblk"))
    return kind in NETWORK or (fuse and kind not in KNOWN_FUSE)


def refuse_unsafe(folder: Path, mounts: Path = MOUNTS) -> None:
    """Raise RefusedError if the folder is on an unsafe file system. Do nothing if the operating
    system does not list its mounts.
    """
    try:
        text = mounts.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return
    mount = mount_of(str(folder.resolve()), parse_mounts(text))
    if mount is not None and is_unsafe(mount.kind):
        raise RefusedError(
            f"checkpoint.dir {folder} is on a file system of type {mount.kind} ({mount.source} "
            f"at {mount.point}), which may not create a name exactly once or keep it after a crash "
            "(link and fsync). Use a local disk or an object store. If you know that this file "
            "system does both, set checkpoint.allow_network_filesystem = true."
        )


def _unescaped(field: str) -> str:
    return _ESCAPED.sub(lambda match: chr(int(match[1], 8)), field)
