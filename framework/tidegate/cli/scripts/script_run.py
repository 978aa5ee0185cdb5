"""Does the work of `Pipeline.run`: runs a pipeline class of this process on this machine.

The processes of the job import the class themselves, so this module turns the class into a
reference first. A class of a script (`__main__`) gets the reference of its file. A class of a
notebook has no file: `cells.py` writes one. Then the class is imported by its reference, here too,
so that a script that cannot be imported is refused before anything is started.

The rest is that of `tidegate run`. An error is raised here and not printed.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from tidegate.api.code.code import is_loading
from tidegate.api.code.references import read_reference
from tidegate.api.pipeline import Pipeline
from tidegate.api.run_result import Ended, RunResult
from tidegate.cli.run.local_run import run_to_end
from tidegate.cli.run.stopping import RunInterruptedError
from tidegate.cli.scripts.cells import write_cells
from tidegate.controlplane.client.preflight import RunOptions
from tidegate.controlplane.jobmaster.events import StopEnd
from tidegate.drivers.process.prestart import prestarted
from tidegate.drivers.process.user_forks import watch_forks
from tidegate.errors import ExternalError, PipelineError, TidegateError
from tidegate.masking import masked_text
from tidegate.protocol.job_state import JobState
from tidegate.terminal.display import Display, QuietDisplay, open_display
from tidegate.terminal.options import environment_parameters

if TYPE_CHECKING:
    from tidegate.config import Config
    from tidegate.protocol.reports import JobReport
    from tidegate.protocol.submission import Submission

_SITE_PACKAGES: Final = frozenset({"site-packages", "dist-packages"})


def run_pipeline(
    pipeline: type[Pipeline],
    params: Mapping[str, str],
    settings: Mapping[str, object],
    *,
    quiet: bool,
    **options: Any,
) -> RunResult:
    """Run the pipeline until it ends; `Pipeline.run` describes the arguments.

    `settings` are by dotted key, and None leaves a setting to the configuration. `options` are
    those of `RunOptions`.
    """
    if is_loading():
        raise PipelineError(
            f"{pipeline.__name__}.run() is called when {pipeline.__module__} is imported, and "
            'every process of the job imports it. Call run() below `if __name__ == "__main__":`.'
        )
    began_s = time.monotonic()
    folder = Path.cwd()
    reference = reference_of(pipeline, folder)
    command_line = {key: value for key, value in settings.items() if value is not None}
    watch_forks(everywhere=False)
    run_options = RunOptions(params={**environment_parameters(), **params}, **options)
    try:
        with prestarted("jobmanager", announces=True) or contextlib.nullcontext() as jobmanager:
            report, _ = run_to_end(
                reference,
                folder,
                command_line,
                run_options,
                open_=_display_opener(quiet=quiet),
                jobmanager=jobmanager,
                origin="the call of run()",
            )
    except RunInterruptedError:
        raise KeyboardInterrupt from None
    except TidegateError as error:
        raise _without_secrets(error) from error.__cause__
    if report.state not in {JobState.FINISHED, JobState.CANCELED}:
        raise _error_of(report)
    return _result_of(report, time.monotonic() - began_s)


def reference_of(pipeline: type[Pipeline], folder: Path) -> str:
    """Return a reference under which any process can import the class.

    PipelineError if the class is not at the top level of a module, or if its module has no file.
    """
    name = pipeline.__qualname__
    if not name.isidentifier():
        raise PipelineError(
            f"{name} is declared inside a function or a class, where other processes do not find "
            "it. Declare it at the top level of its module."
        )
    module = sys.modules[pipeline.__module__]
    file = getattr(module, "__file__", None)
    if module.__name__ == "__main__" and file is None:
        return f"{write_cells(pipeline, vars(module), folder)}:{name}"
    if file is None or not file.endswith(".py"):
        raise PipelineError(
            f"{name} cannot run, because its module {module.__name__!r} has no file that other "
            "processes can import. Put the class into a file such as totals.py."
        )
    known = _module_name(module)
    if not _SITE_PACKAGES.isdisjoint(Path(file).parts):
        return f"{known}:{name}"
    by_file = f"{Path(file).absolute()}:{name}"
    # In a folder without __init__.py, only Python knows that the module belongs to a package.
    same = known in {"__main__", read_reference(by_file, folder).module}
    return by_file if same else f"{known}:{name}"


def _module_name(module: ModuleType) -> str:
    """Return the name under which other processes import a module, also that of `python -m`."""
    spec = module.__spec__
    return module.__name__ if spec is None else spec.name


def _display_opener(*, quiet: bool) -> Callable[[Submission, Config], Display]:
    if quiet:
        return QuietDisplay
    return lambda submission, config: open_display(submission, config, as_json=False)


def _without_secrets(error: TidegateError) -> TidegateError:
    """Return the error, or one of its class with a masked text if its text has a secret."""
    text = masked_text(str(error))
    return error if text == str(error) else type(error)(text)


def _error_of(report: JobReport) -> TidegateError:
    """Return the error of a failed job, with the traceback of the user's code as a note."""
    if report.error is None:
        return ExternalError(
            f"Job {report.job!r} has ended as {report.state.shown} without a reason. See its logs."
        )
    error = report.error.exception()
    if report.error.traceback:
        error.add_note(report.error.traceback.rstrip())
    return error


def _result_of(report: JobReport, duration_s: float) -> RunResult:
    return RunResult(
        job=report.job,
        ended=_ended(report),
        records_in=report.records_in,
        records_out=report.records_out,
        checkpoints=report.checkpoints_completed,
        restarts=report.restarts,
        duration_s=duration_s,
        last_checkpoint=None if report.last_checkpoint is None else report.last_checkpoint.id,
        skipped=report.skipped,
        dead_letters=report.dead_letters,
        late=dict(report.late),
        hidden_offsets=report.hidden_offsets,
        notes=report.notes,
    )


def _ended(report: JobReport) -> Ended:
    if report.state is JobState.CANCELED:
        return "canceled"
    if report.stopped == StopEnd.WITHOUT_CHECKPOINT:
        return "stopped without a checkpoint"
    return "stopped" if report.stopped else "finished"
