"""The keywords of a pipeline's class statement, checked before the class reads them.

Python reports a missing or unknown keyword as a TypeError of `__init_subclass__`, which has
no remedy. The check here raises a PipelineError that names the class, the file, the line and the
remedy. It does not look at values: `Pipeline.__init_subclass__` does. Type checkers still
see the keywords, because the checked function keeps its type.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import re
from collections.abc import Callable
from typing import Any, TypeVar, cast

from tidegate.api.declarations.location import user_location
from tidegate.errors import PipelineError
from tidegate.ids import JOB_NAME

F = TypeVar("F", bound=Callable[..., None])


def with_checked_keywords(init_subclass: F) -> F:
    """Wrap `__init_subclass__`: a wrong keyword raises PipelineError at the class statement."""
    known = [
        name
        for name, each in inspect.signature(init_subclass).parameters.items()
        if each.kind is inspect.Parameter.KEYWORD_ONLY
    ]

    @functools.wraps(init_subclass)
    def checked(cls: type, **given: Any) -> None:
        for unknown in sorted(given.keys() - known):
            near = difflib.get_close_matches(unknown, known, n=1)
            hint = f"Did you mean {near[0]}=? " if near else ""
            raise PipelineError(
                f"{user_location()}: Pipeline class {cls.__name__} has no option {unknown}=. "
                f"{hint}The options are {', '.join(f'{each}=' for each in known)}."
            )
        if "name" not in given:
            base = cls.__mro__[1].__name__
            raise PipelineError(
                f"{user_location()}: Pipeline class {cls.__name__} has no name. Write "
                f'class {cls.__name__}({base}, name="{_job_name(cls.__name__)}"). A base class '
                "that is not run itself has name=None."
            )
        init_subclass(cls, **given)

    return cast("F", checked)


def _job_name(class_name: str) -> str:
    """Return a name for the job of a class: `order-totals` for `OrderTotals`."""
    words = "".join(f"-{each.lower()}" if each.isupper() else each for each in class_name)
    name = "-".join(filter(None, words.replace("_", "-").split("-")))
    return name if re.fullmatch(JOB_NAME, name) else "totals"
