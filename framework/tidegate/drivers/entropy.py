"""The real chance: the operating system's for names, a generator seeded by it for jitter."""

from __future__ import annotations

import random
import secrets
from typing import TYPE_CHECKING

from tidegate.ports.entropy import Entropy


class SystemEntropy:
    """`ports.entropy.Entropy` by the operating system."""

    def token_hex(self, nbytes: int) -> str:
        return secrets.token_hex(nbytes)

    def random(self) -> float:
        return random.random()  # noqa: S311 - spreads restarts, protects nothing


if TYPE_CHECKING:
    _: Entropy = SystemEntropy()
