"""The runner of the tests repeats what failed by a time limit, and nothing else."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from integration.run_tests import PARTS, QUICK, ROOT, Step, _steps, part_of, run
from integration.support import brokers, user_project
from integration.support.running import TooLateError
from integration.support.user_project import Run

TEXT = """
import subprocess
import subprocess
from pathlib import Path

import pytest

from integration.support.running import TooLateError


def fails_once(error):
    runs = Path(__file__).with_suffix(".runs")
    said = runs.read_text() if runs.exists() else ""
    name = type(error).__name__
    runs.write_text(f"{said}{name} ")
    if name not in said:
        raise error


@pytest.fixture
def wrong_at_the_end():
    yield
    assert 1 == 2, "two totals differ"


"""
LATE = "def test_it():\n    fails_once(TooLateError('late'))\n"
LATE_COMMAND = "def test_command():\n    fails_once(subprocess.TimeoutExpired('it', 3))\n"
LATE_TESTS = """
@pytest.mark.timeout(1)
def test_endless():
    try:
        fails_once(AssertionError("endless"))
    except AssertionError:
        while True:
            pass


@pytest.mark.timeout(1)
def test_job_that_takes_the_interruption_for_an_exception_of_user_code():
    try:
        fails_once(OSError())
    except OSError:
        try:
            while True:
                pass
        except BaseException as error:
            raise AssertionError(f"the job failed: {error}") from None
"""
LATE_AND_WRONG = LATE.replace("test_it()", "test_it(wrong_at_the_end)")
WRONG = "def test_wrong():\n    fails_once(AssertionError('a record is missing'))\n"
FAILURES = [  # the tests, the number of runs, and of tests that are named as unstable
    pytest.param(LATE + LATE_COMMAND + LATE_TESTS, 8, 4, id="late"),
    pytest.param(LATE + WRONG, 2, 0, id="late, and another one is wrong"),
    pytest.param(LATE_AND_WRONG, 1, 0, id="late, then wrong", marks=pytest.mark.slow),
    pytest.param(
        LATE + "    raise TooLateError('again')", 2, 0, id="late twice", marks=pytest.mark.slow
    ),
    pytest.param(WRONG, 1, 0, id="wrong", marks=pytest.mark.slow),
]
CONFTEST = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
pytest_plugins = ["integration.support.failures"]
"""


ALONE = ("--rootdir", ".", "-p", "no:cacheprovider", "test_this.py")


def module_of(folder: Path, text: str) -> Path:
    (folder / "conftest.py").write_text(CONFTEST)
    module = folder / "test_this.py"
    module.write_text(text)
    return module


@pytest.mark.parametrize(("text", "runs", "unstable"), FAILURES)
def test_only_tests_that_failed_by_a_time_limit_run_again(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], text: str, runs: int, unstable: int
) -> None:
    module = module_of(tmp_path, TEXT + text)
    (result,) = run([Step("this", ALONE)], tmp_path / "kept", tmp_path)
    tests = module.with_suffix(".runs").read_text().split()
    assert len(tests) == runs
    if unstable:  # tests that share a fixture may need the order of their file
        assert tests[:unstable] == tests[unstable:]
    assert (result.passed, len(result.unstable)) == (unstable > 0, unstable)
    assert result.kept is not None
    assert result.kept.is_dir()
    assert "test_this.py::test_" in capfd.readouterr().out


def test_files_of_a_step_that_passed_are_deleted(tmp_path: Path) -> None:
    module_of(tmp_path, "def test_it(tmp_path): (tmp_path / 'x').write_text('')")
    (result,) = run([Step("this", ALONE)], tmp_path / "kept", tmp_path)
    assert result.passed
    assert list((tmp_path / "kept").iterdir()) == []


def test_a_condition_that_reads_records_is_a_comparison(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_project, "POLL_S", 0.001)
    (tmp_path / "err").write_text("")
    process = subprocess.Popen(["sleep", "60"])
    try:
        run = Run(process, tmp_path, 0.0)

        def reads() -> bool:
            brokers.readings += 1
            return False

        with pytest.raises(TooLateError):
            run.until(lambda: False, "ready", 0.01)
        with pytest.raises(AssertionError) as caught:
            run.until(reads, "all totals", 0.01)
        assert not isinstance(caught.value, TooLateError)
    finally:
        process.kill()
        process.wait()


def test_each_commit_has_a_part_and_each_folder_of_slow_tests_is_in_one() -> None:
    assert {part_of(f"{number:08x}") for number in range(100)} == set(PARTS)
    folders = {
        path.parent.relative_to(ROOT).as_posix()
        for path in (ROOT / "integration").rglob("test_*.py")
    }
    run_by = [word for number in (2, 3, 5) for step in PARTS[number] for word in step.words]
    assert sorted(word for word in run_by if word in folders) == sorted(folders)


def test_all_is_the_tests_and_every_part() -> None:
    every = _steps("test-all", None)
    assert [step for number in PARTS for step in _steps("test-all", number)] == [
        *every[len(_steps("test", None)) :]
    ]
    assert all(
        QUICK[1] in step.words for step in _steps("test", None) if "integration" in step.words
    )
