"""The check that a function returned an iterable of results.

A function that has `return c` in place of `return [c]` would give the fields of a model or the
letters of a text as results, and the job would write those. The loops of `stateless.py`,
`process.py` and `keyed.py` call this check.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tidegate.api.records.record_fields import is_model
from tidegate.api.records.values import article, counts_as
from tidegate.dataplane.user_errors import NotResultsError
from tidegate.graph.stream_graph import UNKNOWN

_NEVER_RESULTS: Final = (str, bytes, bytearray)
"""Iterables whose items are never meant as results."""


def results_guard(of: object) -> Callable[[object], type]:
    """Return a function that raises NotResultsError if its argument is not an iterable of results
    of type `of`. Otherwise the function returns the class of the argument.

    A loop calls the function only when the class of the returned value changes. A record therefore
    costs one comparison.
    """
    known = of is not UNKNOWN and of is not Any

    def guard(results: object) -> type:
        kind = type(results)
        if results is None:
            what = "returned None, not an iterable of results"
            raise NotResultsError(what, "Return () if a record has no results.")
        one = isinstance(results, _NEVER_RESULTS) or is_model(kind)
        one = one or (issubclass(kind, dict) and known and counts_as(kind, of))
        if one or not hasattr(kind, "__iter__"):
            what = f"returned {article(kind.__name__)}, not an iterable of results"
            raise NotResultsError(what, "Write yield c or return [c] for one result c.")
        return kind

    return guard
