"""`Pipeline.run` without a cluster: the reference of a class, its parameters, and its result."""

from __future__ import annotations

import enum
import importlib
import subprocess
import sys
from datetime import date
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from tidegate import Json, KafkaSink, KafkaSource, Param, Pipeline, PipelineError, build
from tidegate.cli.run.stopping import SecondInterruptError
from tidegate.cli.scripts import script_run
from tidegate.cli.scripts.script_run import reference_of
from tidegate.controlplane.client.preflight import RunOptions
from tidegate.errors import ConfigError, ExternalError, UserCodeError
from tidegate.ids import JobName
from tidegate.masking import remember_value
from tidegate.protocol.errors import ErrorReport
from tidegate.protocol.job_state import JobState
from tidegate.protocol.reports import CheckpointReport, JobReport


class Colour(enum.Enum):
    RED = "red"


class Copies(Pipeline, name="copies"):
    a = KafkaSource("a", value=Json(int))
    b = KafkaSink("b", value=Json(int))
    limit = Param(int)
    share = Param(Decimal, default=Decimal(1))
    day = Param(date, default=date(2026, 1, 1))
    colour = Param(Colour, default=Colour.RED)
    exact = Param(bool, default=False)
    word = Param(str, default="")
    many = Param(list, default=[])

    def define(self) -> None:
        self.a.to(self.b)


# --- parameters ---------------------------------------------------------------------------------


def test_parameters_are_keywords_of_the_class_and_a_missing_one_is_refused_at_build() -> None:
    assert Copies(limit=3).limit == 3
    assert Copies({"limit": "4"}, exact=True).exact is True
    with pytest.raises(PipelineError, match=r"'limit' of Copies has no value; give it one: Copies"):
        _ = Copies().limit
    with pytest.raises(PipelineError, match="'limit' of Copies is required: --set limit="):
        build(Copies)
    with pytest.raises(
        PipelineError, match=r"Copies has no parameter 'limt'\. Did you mean 'limit'\?"
    ):
        Copies(limt=3)
    with pytest.raises(PipelineError, match="Parameter 'limit': Expected `int`"):
        Copies(limit="many")


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("limit", 3, "3"),
        ("limit", "3", "3"),
        ("share", Decimal("0.10"), "0.10"),
        ("day", date(2026, 2, 3), "2026-02-03"),
        ("colour", Colour.RED, "red"),
        ("exact", True, "true"),
        ("word", 'a "b" ü', 'a "b" ü'),
    ],
)
def test_value_of_a_parameter_becomes_the_text_of_which_every_process_makes_it_again(
    name: str, value: object, text: str
) -> None:
    param = Copies.params[name]
    assert param.to_text(value) == text
    assert param.parse(text) == param.parse(value)


def test_value_that_no_text_gives_is_refused() -> None:
    with pytest.raises(PipelineError, match="Parameter 'many'"):
        Copies.params["many"].to_text([1, 2])


# --- the run ------------------------------------------------------------------------------------


def report(state: JobState = JobState.FINISHED, **changes: Any) -> JobReport:
    last = CheckpointReport(id="3-17", completed_ms=0, duration_ms=1, size=1, transactions=0)
    facts = {"records_in": 7, "records_out": 5, "checkpoints_completed": 2, "late": {"w": 1}}
    return JobReport(
        job=JobName("copies"), state=state, last_checkpoint=last, **{**facts, **changes}
    )


class Runner:
    """Takes the place of `run_to_end`."""

    def __init__(self, outcome: JobReport | BaseException) -> None:
        self.outcome = outcome
        self.reference, self.settings = "", dict[str, object]()
        self.options = RunOptions(params={})

    def __call__(
        self,
        reference: str,
        _folder: Path,
        settings: dict[str, object],
        options: RunOptions,
        **_: object,
    ) -> tuple[JobReport, None]:
        self.reference, self.settings, self.options = reference, settings, options
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome, None


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> Runner:
    runner = Runner(report())
    monkeypatch.setattr(script_run, "run_to_end", runner)
    monkeypatch.setattr(script_run, "prestarted", lambda *_, **__: None)
    return runner


def test_run_passes_parameters_settings_and_options_and_returns_the_counts(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEGATE_PARAMS__LIMIT", "9")
    monkeypatch.setenv("TIDEGATE_PARAMS__WORD", "of the environment")
    result = Copies(limit=3).run(
        kafka="h:1",
        bounded=True,
        checkpoint_interval="1 s",
        settings={"checkpoint.dir": "there"},
        restore="none",
    )
    assert runner.reference == f"{__name__}:Copies"
    assert runner.settings == {
        "kafka.bootstrap_servers": "h:1",
        "checkpoint.interval": "1000 ms",
        "checkpoint.dir": "there",
    }
    assert runner.options == RunOptions(
        params={"limit": "3", "word": "of the environment"}, bounded=True, restore="none"
    )
    assert (result.records_in, result.records_out, result.checkpoints) == (7, 5, 2)
    assert (result.last_checkpoint, result.late, result.finished) == ("3-17", {"w": 1}, True)


@pytest.mark.parametrize(
    ("state", "stopped", "ended"),
    [
        (JobState.FINISHED, "", "finished"),
        (JobState.FINISHED, "with_checkpoint", "stopped"),
        (JobState.FINISHED, "without_checkpoint", "stopped without a checkpoint"),
        (JobState.CANCELED, "", "canceled"),
    ],
)
def test_result_says_how_the_run_ended(
    runner: Runner, state: JobState, stopped: str, ended: str
) -> None:
    runner.outcome = report(state, stopped=stopped)
    assert Copies(limit=1).run().ended == ended


def test_failed_job_raises_its_own_error_with_the_traceback_as_a_note(runner: Runner) -> None:
    error = msgspec.structs.replace(ErrorReport.of(UserCodeError("it broke")), traceback="File x\n")
    runner.outcome = report(JobState.FAILED, error=error)
    with pytest.raises(UserCodeError, match="it broke") as caught:
        Copies(limit=1).run()
    assert caught.value.__notes__ == ["File x"]
    runner.outcome = report(JobState.FENCED)
    with pytest.raises(ExternalError, match="'copies' has ended as fenced without a reason"):
        Copies(limit=1).run()


def test_second_ctrl_c_is_a_keyboard_interrupt_and_an_error_has_no_secret(runner: Runner) -> None:
    runner.outcome = SecondInterruptError()
    with pytest.raises(KeyboardInterrupt):
        Copies(limit=1).run()
    remember_value("a-long-password")
    runner.outcome = ConfigError("the password a-long-password is wrong")
    with pytest.raises(ConfigError) as caught:
        Copies(limit=1).run()
    assert "a-long-password" not in str(caught.value)


# --- references ---------------------------------------------------------------------------------


def test_class_inside_of_a_function_or_of_a_module_without_a_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Inner(Copies, name="inner"):
        pass

    with pytest.raises(PipelineError, match="is declared inside a function or a class"):
        reference_of(Inner, tmp_path)
    module = ModuleType("made_up")
    monkeypatch.setitem(sys.modules, "made_up", module)
    made = type("Made", (Copies,), {"__module__": "made_up", "__qualname__": "Made"}, name="made")
    with pytest.raises(PipelineError, match="its module 'made_up' has no file"):
        reference_of(made, tmp_path)


@pytest.mark.parametrize(
    ("module", "by_file"),
    [("packaged_flow.totals", True), ("loose_flow.totals", False), ("alone_flow", True)],
)
def test_class_of_an_imported_module_is_found_by_its_file_or_else_by_its_module(
    module: str, *, by_file: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an __init__.py, the file alone does not say that the module is in a package."""
    file = tmp_path / f"{module.replace('.', '/')}.py"
    file.parent.mkdir(exist_ok=True)
    if module.startswith("packaged"):
        (file.parent / "__init__.py").touch()
    file.write_text("from tests.cli.test_script_run import Copies\nclass T(Copies, name='t'): ...")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "tests.cli.test_script_run", sys.modules[__name__])
    try:
        found = reference_of(importlib.import_module(module).T, tmp_path / "elsewhere")
    finally:
        for name in [each for each in sys.modules if each.startswith(module.partition(".")[0])]:
            del sys.modules[name]
    assert found == (f"{file}:T" if by_file else f"{module}:T")


def test_class_of_an_installed_package_keeps_its_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, all of site-packages would be the folder of the pipeline."""
    monkeypatch.setattr(
        sys.modules[__name__], "__file__", "/venv/lib/site-packages/installed_flow.py"
    )
    assert reference_of(Copies, tmp_path) == f"{__name__}:Copies"


def test_class_that_is_not_of_the_public_package_says_how_to_import_it() -> None:
    script = """if True:
        from tidegate.api.pipeline import Pipeline

        class Copies(Pipeline, name="copies"):
            def define(self): ...

        Copies().run()
    """
    done = subprocess.run(
        [sys.executable, "-c", script], check=False, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "PipelineError: run() has no runner. Write `from tidegate import Pip" in done.stderr


def test_public_package_alone_imports_the_runner_and_only_at_the_first_run() -> None:
    script = "import sys, tidegate; tidegate.Pipeline; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    )
    assert "tidegate.api.pipeline" in done.stdout.split()
    assert not [name for name in done.stdout.split() if name.startswith("tidegate.cli")]


def test_run_imports_no_simulator_and_no_tool_of_developers() -> None:
    script = "import sys, tidegate.cli.scripts.script_run, tidegate.bootstrap; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    )
    imported = set(done.stdout.split())
    assert not {"greenlet", "hypothesis", "pytest", "pyspark", "IPython", "psutil"} & imported
    assert not [name for name in imported if name.startswith("tidegate.testing")]
