"""The entry point of the command `tidegate`.

It is ready for Ctrl-C before it imports the commands.
"""

from __future__ import annotations

from tidegate.cli.interrupt import ExitOnInterrupt


def main() -> None:
    """Run the command line."""
    with ExitOnInterrupt():
        from tidegate.cli.main import main as run
    run()
