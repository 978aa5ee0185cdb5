"""Real randomness: the operating system's source for names, and for jitter a generator that is
seeded from that source.
"""

from __future__ import annotations

import random
import secrets
from typing import TYPE_CHECKING

from tidegate.ports.entropy import Entropy


class SystemEntropy:
    """An implementation of `ports.entropy.Entropy` with the operating system's random source."""

    def token_hex(self, nbytes: int) -> str:
        return secrets.token_hex(nbytes)

    def random(self) -> float:
        return random.random()  # noqa: S311 - spreads restarts, protects nothing


if TYPE_CHECKING:
    _: Entropy = SystemEntropy()
