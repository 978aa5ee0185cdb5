"""What a type checker must refuse, line by line, and what it must let pass.

Goal: the promise that the wrong line is red in the editor. Method: mypy --strict over
`wrong/wrong_types.py`; the lines with errors must be exactly the lines marked `# refused`.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
WRONG = ROOT / "tests" / "api" / "wrong" / "wrong_types.py"


def lines_with_errors(file: Path) -> set[int]:
    command = [sys.executable, "-m", "mypy", "--strict", "--show-error-codes", str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    found = re.findall(rf"{file.name}:(\d+)(?::\d+)?: error", done.stdout)
    assert found or done.returncode == 0, done.stdout + done.stderr
    return {int(number) for number in found}


def test_mypy_refuses_the_marked_lines_and_no_others() -> None:
    lines = WRONG.read_text().splitlines()
    marked = {number for number, line in enumerate(lines, 1) if "# refused" in line}
    assert len(marked) > 40
    found = lines_with_errors(WRONG)
    passed = [lines[number - 1].strip() for number in sorted(marked - found)]
    refused = [lines[number - 1].strip() for number in sorted(found - marked)]
    assert (passed, refused) == ([], [])
