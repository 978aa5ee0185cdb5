"""The check of the results of one group: each adds one to the count and its amount to the total.

The two checkers of the oracle share this module: the checker of exactly-once sinks and the checker
of at-least-once sinks.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.simulator.pipelines import Result


class Violation(Exception):
    """An invariant that does not hold."""


@dataclass(slots=True)
class Group:
    """The count and the total of the last checked result of a group."""

    count: int = 0
    total: int = 0
    ahead: dict[int, Result] = field(default_factory=dict)
    """Results that arrived before their predecessors, by count: lost results, and results of two
    sinks with one count.
    """

    def take(self, result: Result, where: str) -> None:
        """Check a result that must be the next of the group. Raise Violation otherwise."""
        self._refuse_second(result, where)
        self._go_on(result, where)
        self._catch_up(where)

    def take_in_any_order(self, result: Result, where: str) -> None:
        """Check a result that may overtake others. Raise Violation if its count came before."""
        self._refuse_second(result, where)
        self.ahead[result.count] = result
        self._catch_up(where)

    def pass_over(self, result: Result) -> None:
        """Skip a result whose loss is expected."""
        self.ahead[result.count] = result
        self._catch_up("lost")

    def _refuse_second(self, result: Result, where: str) -> None:
        if result.count <= self.count or result.count in self.ahead:
            message = f"{where}: count {result.count} of group {result.group} for a second time"
            raise Violation(message)

    def _catch_up(self, where: str) -> None:
        """Check the results that arrived early, or are known to be lost, and are next now."""
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
