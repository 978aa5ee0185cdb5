"""Measures the present speed of the machine in two numbers, without Kafka and without tidegate.

The first number is the time of a step of the interpreter. The second number is the additional time
to visit an object that no cache holds. State with many keys waits for such visits.

The speed of a virtual machine changes from minute to minute with the load of its neighbours.
Machines differ most in the second number. So each table of the benchmark states both numbers, and a
reader can compare absolute figures. Both are CPU time of this thread, not wall time.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

OBJECTS: Final = 2_000_000
"""Number of floats of 24 bytes. They do not fit into the caches of a shared core."""


@dataclass(frozen=True, slots=True)
class Speed:
    """Both numbers, in nanoseconds. A smaller number means a faster machine."""

    step_ns: float
    visit_ns: float

    def __str__(self) -> str:
        return (
            f"Just after the measurement, a step of the interpreter took {self.step_ns:.0f} ns, "
            f"and a visit to an object that no cache holds took {self.visit_ns:.0f} ns more."
        )


def speed(objects: int = OBJECTS) -> Speed:
    """Measure the speed now. This takes about four seconds and 100 MB."""
    in_order = [float(number) for number in range(objects)]
    # These are the same objects. A loop that visits them in another order jumps through memory.
    shuffled = random.Random(1).sample(in_order, objects)
    step_ns = _ns_a_step(in_order)
    return Speed(step_ns, max(0.0, _ns_a_step(shuffled) - step_ns))


def _ns_a_step(values: Iterable[float]) -> float:
    began, steps, total = time.thread_time_ns(), 0, 0.0
    for value in values:
        total += value
        steps += 1
    return (time.thread_time_ns() - began) / steps
