"""The command line as a whole: help is quick and has examples, outcomes become exit codes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
import typer

from tidegate.cli import main as module
from tidegate.errors import ConfigError, InternalError, KafkaError

HEAVY = {"rich", "confluent_kafka", "kafka", "grpc", "pydantic", "msgspec", "asyncio"}


def belongs_to_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `main` read its arguments from `sys.argv`, and change nothing else of this process."""
    monkeypatch.setattr(sys, "argv", ["tidegate"])
    monkeypatch.setattr(module, "watch_forks", lambda **_: None)
    monkeypatch.setattr(module, "guard_handlers", lambda _: None)
    monkeypatch.setattr(module, "exit_at_once", sys.exit)


def commands(app: typer.Typer, path: str = "tidegate") -> Iterator[tuple[str, str]]:
    for command in app.registered_commands:
        assert command.callback is not None
        name = command.name or command.callback.__name__.replace("_", "-")
        yield f"{path} {name}", command.callback.__doc__ or ""
    for group in app.registered_groups:
        assert group.typer_instance is not None
        yield from commands(group.typer_instance, f"{path} {group.name}")


def test_help_of_every_command_shows_an_example_of_the_command() -> None:
    found = dict(commands(module.app))
    assert "tidegate kafka up" in found
    for name, text in found.items():
        assert f"Example: {name}" in text, name


def test_command_line_imports_no_heavy_library() -> None:
    script = "import sys, tidegate.cli.main; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    )
    assert not HEAVY & set(done.stdout.split())


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (None, 0),
        (ConfigError("the key is unknown; remove it"), 2),
        (KafkaError("no broker answers"), 1),
        (KeyboardInterrupt(), 130),
        (typer.Exit(1), 1),
    ],
)
def test_outcome_of_a_command_becomes_its_exit_code(
    outcome: BaseException | None,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    app = typer.Typer()

    @app.command()
    def command() -> None:
        if outcome is not None:
            raise outcome

    monkeypatch.setattr(module, "app", app)
    belongs_to_the_command(monkeypatch)
    with pytest.raises(SystemExit) as exit_:
        module.main()
    assert (exit_.value.code or 0) == code
    if isinstance(outcome, ConfigError | KafkaError):
        assert capsys.readouterr().err == f"tidegate: {outcome}\n"


def test_interrupted_command_does_not_wait_for_a_thread() -> None:
    script = """
import threading, typer
from tidegate.cli import main
main.app = typer.Typer()

@main.app.command()
def command() -> None:
    threading.Thread(target=threading.Event().wait).start()
    raise KeyboardInterrupt

main.main()
"""
    done = subprocess.run([sys.executable, "-c", script], timeout=60, check=False)
    assert done.returncode == 130


def test_internal_error_is_shown_with_its_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    app = typer.Typer(pretty_exceptions_enable=False)

    @app.command()
    def command() -> None:
        raise InternalError("must not be")

    monkeypatch.setattr(module, "app", app)
    belongs_to_the_command(monkeypatch)
    with pytest.raises(SystemExit) as left:
        module.main()
    assert left.value.code == module.FAILED
    told = capsys.readouterr().err
    assert told.startswith("Traceback")
    assert 'raise InternalError("must not be")' in told
