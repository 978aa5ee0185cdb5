"""The entry point of the command `tidegate`.

It is ready for Ctrl-C before it imports the commands.
"""

from __future__ import annotations

from tidegate.process_start import complete_standard_streams, ignore_library_warnings
from tidegate.terminal.interrupt import ExitOnInterrupt


def main() -> None:
    """Run the command line."""
    with ExitOnInterrupt():
        complete_standard_streams()
        ignore_library_warnings()
        from tidegate.cli.main import main as run
    run()
