"""The entry of every process that a cluster starts as a program: `python -m tidegate.role ROLE`.

`bootstrap` does the rest. This module only makes the imports fast, and safe from warnings.
"""

from __future__ import annotations

import gc
import sys
from typing import NoReturn

from tidegate.process_start import ignore_library_warnings


def main(role: str, *descriptors: str) -> NoReturn:
    """Run a role until it ends, and end this process with its status. `descriptors` are for a slot
    that is a program (`drivers/process/fork_server.py`).
    """
    ignore_library_warnings()
    gc.disable()  # imports make no garbage, and a search for it takes 5 % of their time
    from tidegate.bootstrap import run_role, run_slot_program

    if role == "slot":
        run_slot_program(*map(int, descriptors))
    run_role(role)


if __name__ == "__main__":
    main(*sys.argv[1:])
