"""`LocalStateDir`: where a slot, or a task of a backfill, keeps its working state,
`<state directory>/<job>/<journal>/<attempt>/<slot>`.

A slot that is killed, or whose attempt fails, leaves its folder: the next attempt restores from it
what it can (`local_files.py`). It is removed when the next attempt has completed a
checkpoint, for then each of its slots has restored, or when the job ends. Until then the folders of
the newest attempts stay and no others, so that a job that restarts in a circle does not fill the
disk; and where the disk is full, none of them stays. A host that gets no slot of the job any more,
also because the job was ended while it had none, keeps what the last one left there.

By journal, for who runs a job of the same name with another checkpoint storage counts attempts of
its own: nobody removes, or takes for its own, what belongs to the other.

Nothing here is the truth: the checkpoint storage has all of it.
"""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import Final

from tidegate.dataplane.state.local_files import LocalStateFiles
from tidegate.private_files import make_private_folder

ATTEMPTS_RETAINED: Final = 2
"""Earlier attempts whose files may still serve: the newest of them may have ended before it had
restored anything.
"""


class LocalStateDir:
    """The folder of one slot in one attempt.

    Of this slot alone, hence its serial in the name: a slot that was given up may leave, and remove
    its folder, when another has its place on the same host.
    """

    def __init__(self, root: Path, attempt: int, slot: str) -> None:
        """`root` is of the job and its journal."""
        self.path = root / str(attempt) / slot
        self._root, self._attempt = root, attempt

    def make(self) -> None:
        """Make it anew, empty; OSError where that is not possible, even without what earlier
        attempts left.
        """
        try:
            self._make()
        except OSError:
            self.remove_earlier()  # it may be what fills the disk, and nothing else would remove it
            self._make()

    def remove(self) -> None:
        """Nobody will restore from it."""
        shutil.rmtree(self.path, ignore_errors=True)
        with contextlib.suppress(OSError):  # others are in there, or have removed it
            self.path.parent.rmdir()
            self._root.rmdir()

    def remove_all(self) -> None:
        """The job has ended, and this is the newest attempt. The last slot of it to leave this host
        leaves nothing.
        """
        self.remove_earlier()
        self.remove()

    def previous_files(self) -> LocalStateFiles:
        """What earlier attempts left."""
        return LocalStateFiles.under(self._earlier())

    def files_of_earlier_waves(self, slots: str) -> LocalStateFiles:
        """What earlier attempts left in the folders of `slots`, a pattern: each task of a wave
        looks, for its own subtask only. The notes of the attempt just before count: it left none if
        it failed.
        """
        folders = [slot for path in self._earlier() for slot in path.glob(slots)]
        before = self._root / str(self._attempt - 1)
        return LocalStateFiles.under(folders, [path for path in folders if path.parent == before])

    def remove_earlier(self, keep: int = 0) -> None:
        """Remove what earlier attempts left, but for the newest `keep` of them. From any thread,
        and from several slots at once. A zombie's files are nobody's any more.
        """
        for folder in self._earlier()[keep:]:
            shutil.rmtree(folder, ignore_errors=True)

    def _make(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        make_private_folder(self.path, exist_ok=False)

    def _earlier(self) -> list[Path]:
        """Folders of attempts before this one, newest first."""
        try:
            numbers = [int(path.name) for path in self._root.iterdir() if path.name.isdecimal()]
        except OSError:
            return []  # what cannot be looked at serves nobody, and no job fails for it
        numbers.sort(reverse=True)
        return [self._root / str(number) for number in numbers if number < self._attempt]
