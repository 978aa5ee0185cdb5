"""Chance, as a thing that is handed in: the operating system's in processes, a seed's in the
simulator.
"""

from __future__ import annotations

from typing import Protocol


class Entropy(Protocol):
    """Names that nobody else makes, and jitter."""

    def token_hex(self, nbytes: int) -> str:
        """A name of `2 * nbytes` hexadecimal digits, unpredictable."""
        ...

    def random(self) -> float:
        """From 0 up to, not including, 1; for spreading things out, not for secrets."""
        ...
