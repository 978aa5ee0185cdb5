"""The port for random values: the operating system's in processes, a seed's in the simulator."""

from __future__ import annotations

from typing import Protocol


class Entropy(Protocol):
    """A source of unique names and of jitter."""

    def token_hex(self, nbytes: int) -> str:
        """Return an unpredictable name of `2 * nbytes` hexadecimal digits."""
        ...

    def random(self) -> float:
        """Return a number from 0 up to, but not including, 1. It is not fit for secrets."""
        ...
