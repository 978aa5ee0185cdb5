"""The entry of every process that a cluster starts: `python -m tidegate.role ROLE`.

The module first starts the processes that the role needs first. Only then it imports `bootstrap`,
which takes a fifth of a second, so that parent and children import at the same time
(`drivers/process/prestart`). It imports nothing else, and it does not know what a role does.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NoReturn

from tidegate.drivers.process.prestart import prestarted

PRESTARTED: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {"jobmanager": ("taskmanager", "jobmaster"), "taskmanager": ("zygote",)}
)
"""The roles that each role starts as soon as it serves."""


def main(role: str) -> NoReturn:
    """Run a role until it ends, and end this process with its status."""
    gc.disable()  # imports make no garbage, and a search for it takes 5 % of their time
    started = {child: prestarted(child) for child in PRESTARTED.get(role, ())}
    from tidegate.bootstrap import run_role

    run_role(role, {child: process for child, process in started.items() if process is not None})


if __name__ == "__main__":
    main(sys.argv[1])
