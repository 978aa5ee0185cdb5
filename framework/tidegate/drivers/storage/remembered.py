"""The id of the checkpoint storage that this host used last, remembered beside its local state.

A JobManager that is started while its storage is not mounted sees an empty folder, and would take
it for a new storage: it would know no job, and would write below the mount point. Other processes
are told the id by who starts them; a JobManager that stands by itself reads it here. Only paths
need this: an object store that is away does not look empty.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from tidegate.drivers.storage.identity import id_in
from tidegate.errors import CorruptCheckpointError
from tidegate.private_files import make_private_folder, write_private


class RememberedStorage:
    """The file of one storage, named by a digest of its path, in `folder`."""

    def __init__(self, folder: Path, storage: str) -> None:
        digest = hashlib.sha256(storage.encode()).hexdigest()[:16]
        self.file = folder / "storages" / f"{digest}.id"
        self._storage, self._is_path = storage, "://" not in storage

    def read(self) -> str:
        """The id; empty if none is remembered.

        CorruptCheckpointError if the file holds no id: a new storage would pass for the old one.
        """
        if not self._is_path:
            return ""
        try:
            found = id_in(self.file.read_bytes())
        except FileNotFoundError:
            return ""
        if found is None:
            raise CorruptCheckpointError(
                f"{self.file}, which says what checkpoint storage this host used last at "
                f"{self._storage}, is damaged. Make sure that the right storage is mounted there, "
                "and delete the file."
            )
        return found

    def write(self, identity: str) -> None:
        """Remember the id. Whole or not at all: a torn file would be waited for."""
        if self._is_path and self.read() != identity:
            make_private_folder(self.file.parent)
            new = self.file.with_suffix(".new")
            write_private(new, identity.encode())
            new.replace(self.file)
