"""`LocalStateDir`: the folder with the working state of a slot, or of a task of a backfill.

Its path is `<state directory>/<job>/<journal>/<attempt>/<slot>`.

A slot that is killed, or whose attempt fails, leaves its folder. The next attempt restores as much
as possible from it (`local_files.py`). The folder is removed when the next attempt has completed a
checkpoint, because each of its slots has restored by then. It is also removed when the job ends.
Until then, only the folders of the newest attempts stay, so that a job that restarts again and
again does not fill the disk. If the disk is full, none of these folders stays. If a host no longer
runs slots of the job, its files stay there, even if the job ends meanwhile.

The path contains the journal because another checkpoint storage may have a job of the same name,
which counts its own attempts. Neither job removes or uses the files of the other.

A job never depends on these folders: a restore can read everything from the checkpoint storage.
"""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import Final

from tidegate.dataplane.state.local_files import LocalStateFiles
from tidegate.errors import StorageError
from tidegate.private_files import make_private_folder

ATTEMPTS_RETAINED: Final = 2
"""Number of earlier attempts whose files may still be used. The newest of them may have ended
before it had restored anything.
"""


class LocalStateDir:
    """The folder of one slot in one attempt.

    The folder belongs to this slot alone, so its name contains the allocation id of the slot.
    A slot that was declared lost may exit late and remove its folder. Another slot may then already
    run in its place on the same host.
    """

    def __init__(self, root: Path, attempt: int, slot: str) -> None:
        """Set the paths. `root` is the folder of the job and its journal."""
        self.path = root / str(attempt) / slot
        self._root, self._attempt = root, attempt

    def make(self) -> None:
        """Make the folder again, empty. Raise StorageError if this fails even after the files of
        earlier attempts were removed.
        """
        try:
            self._make()
        except OSError:
            self.remove_earlier()  # they may fill the disk, and nothing else would remove them
            try:
                self._make()
            except OSError as error:
                raise StorageError(
                    f"The folder {error.filename} for local state cannot be made: {error.strerror}."
                    " Make room there, or set state.local_dir to another folder."
                ) from error

    def remove(self) -> None:
        """Remove the folder, because no attempt will restore from it."""
        shutil.rmtree(self.path, ignore_errors=True)
        with contextlib.suppress(OSError):  # other slots use the parents, or have removed them
            self.path.parent.rmdir()
            self._root.rmdir()

    def remove_all(self) -> None:
        """Remove this folder and those of earlier attempts. The job has ended, and this is its
        newest attempt. When the job's last slot on this host has called this, no files stay.
        """
        self.remove_earlier()
        self.remove()

    def previous_files(self) -> LocalStateFiles:
        """Return the files that earlier attempts left."""
        return LocalStateFiles.find_in(self._previous_attempts())

    def files_of_earlier_waves(self, slots: str) -> LocalStateFiles:
        """Return the files that earlier attempts left in the folders of `slots`, a glob pattern.

        Each task of a wave searches only the folders of its own subtask. Only notes of the attempt
        directly before are used. A task that failed before its upload left no note there.
        """
        folders = [slot for path in self._previous_attempts() for slot in path.glob(slots)]
        before = self._root / str(self._attempt - 1)
        return LocalStateFiles.find_in(folders, [path for path in folders if path.parent == before])

    def remove_earlier(self, keep: int = 0) -> None:
        """Remove the files of earlier attempts, except for the newest `keep` attempts.

        Any thread may call this, and several slots may do so at once. The files of a zombie are not
        needed any more.
        """
        for folder in self._previous_attempts()[keep:]:
            shutil.rmtree(folder, ignore_errors=True)

    def _make(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        make_private_folder(self.path, exist_ok=False)

    def _previous_attempts(self) -> list[Path]:
        """Return the folders of attempts before this one, newest first."""
        try:
            numbers = [int(path.name) for path in self._root.iterdir() if path.name.isdecimal()]
        except OSError:
            return []  # an unreadable folder is useless, and does not fail the job
        numbers.sort(reverse=True)
        return [self._root / str(number) for number in numbers if number < self._attempt]
