"""How fast the machine is at this moment, without Kafka and without tidegate: two numbers.

A step of the interpreter, and the visit of an object that no cache holds, which is what state with
many keys waits for. Virtual machines change from minute to minute by what their neighbours do, and
differ from each other most in the second; so each table of the benchmark says both, and an absolute
figure can be read by them. CPU time of this thread, not wall time.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

OBJECTS: Final = 2_000_000
"""Floats of 24 bytes: more than the caches of a core that others share hold."""


@dataclass(frozen=True, slots=True)
class Speed:
    """In nanoseconds, smaller is faster."""

    step_ns: float
    visit_ns: float

    def __str__(self) -> str:
        return (
            f"Just after: {self.step_ns:.0f} ns a step of the interpreter, "
            f"{self.visit_ns:.0f} ns more to visit an object that no cache holds."
        )


def speed(objects: int = OBJECTS) -> Speed:
    """Measured now; takes about four seconds and 100 MB."""
    in_order = [float(number) for number in range(objects)]
    # The same objects: who visits them in another order jumps through memory.
    shuffled = random.Random(1).sample(in_order, objects)
    step_ns = _ns_a_step(in_order)
    return Speed(step_ns, max(0.0, _ns_a_step(shuffled) - step_ns))


def _ns_a_step(values: Iterable[float]) -> float:
    began, steps, total = time.thread_time_ns(), 0, 0.0
    for value in values:
        total += value
        steps += 1
    return (time.thread_time_ns() - began) / steps
