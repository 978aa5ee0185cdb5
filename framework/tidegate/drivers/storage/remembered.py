"""The id of the checkpoint storage that this host used last, stored next to its local state.

A JobManager that starts while its storage is not mounted sees an empty folder. Without this file it
would use the folder as a new storage: it would know no job, and would write below the mount point.
Other processes get the id from the process that starts them. The JobManager of a session cluster
reads it from this file. Only paths need the file: an unreachable object store does not look empty.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from tidegate.drivers.storage.identity import parse_id
from tidegate.errors import CorruptCheckpointError
from tidegate.private_files import make_private_folder, write_private
from tidegate.storage_location import is_url


class RememberedStorage:
    """The file with the id of one storage. Its name is a digest of the storage's path, and it is
    below `folder`.
    """

    def __init__(self, folder: Path, storage: str) -> None:
        digest = hashlib.sha256(storage.encode()).hexdigest()[:16]
        self.file = folder / "storages" / f"{digest}.id"
        self._storage, self._is_path = storage, not is_url(storage)

    def read(self) -> str:
        """Return the stored id, or an empty text if none is stored or the storage is a URL.

        CorruptCheckpointError if the file contains no id: without an id, this host could not
        distinguish a new storage from the old one.
        """
        if not self._is_path:
            return ""
        try:
            found = parse_id(self.file.read_bytes())
        except FileNotFoundError:
            return ""
        if found is None:
            raise CorruptCheckpointError(
                f"{self.file}, which says what checkpoint storage this host used last at "
                f"{self._storage}, is damaged. Check that the right storage is mounted there, "
                "and delete the file."
            )
        return found

    def write(self, identity: str) -> None:
        """Store the id atomically, because `read` would refuse a torn file until the user deletes
        it. Do nothing if the storage is a URL.
        """
        if self._is_path and self.read() != identity:
            make_private_folder(self.file.parent)
            new = self.file.with_suffix(".new")
            write_private(new, identity.encode())
            new.replace(self.file)
