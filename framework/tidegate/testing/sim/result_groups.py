"""What the results of one group say: their counts go on by one, and their totals by what each adds.

Shared by the oracle's two judges, of sinks that are exact and of those that are written at least
once.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tidegate.testing.sim.pipelines import Result


class Violation(Exception):
    """An invariant does not hold."""


@dataclass(slots=True)
class Group:
    """What the last results of a group said."""

    count: int = 0
    total: int = 0
    ahead: dict[int, Result] = field(default_factory=dict)
    """Results that came before those they follow: of two sinks with one count, and lost ones."""

    def take(self, result: Result, where: str) -> None:
        """One that must be the next."""
        self._refuse_second(result, where)
        self._go_on(result, where)
        self._catch_up(where)

    def take_in_any_order(self, result: Result, where: str) -> None:
        """One of several that may overtake each other."""
        self._refuse_second(result, where)
        self.ahead[result.count] = result
        self._catch_up(where)

    def pass_over(self, result: Result) -> None:
        """One that is lost by right."""
        self.ahead[result.count] = result
        self._catch_up("lost")

    def _refuse_second(self, result: Result, where: str) -> None:
        if result.count <= self.count or result.count in self.ahead:
            message = f"{where}: count {result.count} of group {result.group} for a second time"
            raise Violation(message)

    def _catch_up(self, where: str) -> None:
        """With what was there, or known to be lost, before those it follows."""
        while (following := self.ahead.pop(self.count + 1, None)) is not None:
            self._go_on(following, where)

    def _go_on(self, result: Result, where: str) -> None:
        count, total = self.count + 1, self.total + result.amount
        if (result.count, result.total) != (count, total):
            message = (
                f"{where}: {result.name} says count {result.count} and total {result.total} of "
                f"group {result.group}, where {count} and {total} follow"
            )
            raise Violation(message)
        self.count, self.total = count, total
