"""A pipeline in the cells of a notebook, in a real Jupyter kernel and on a real broker.

The cells have no module, and the slots are other processes. So each test checks the output of the
slots, and not only what the kernel prints.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.support.brokers import Kafka
from integration.support.notebook import Notebook, open_notebook
from integration.support.user_project import TOTALS, Folder

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(240)]

RUN = 'Totals().run(kafka="{kafka}", bounded=True, checkpoint_interval="300 ms")'


@pytest.fixture
def folder(kafka: Kafka, tmp_path: Path) -> Folder:
    return Folder.make(tmp_path, kafka.bootstrap)


@pytest.fixture
def notebook(folder: Folder) -> Iterator[Notebook]:
    (folder.path / "job.py").unlink()  # the cells are the only code
    with open_notebook(folder.path, os.environ) as notebook:
        yield notebook


def cells(folder: Folder) -> list[str]:
    """Return the pipeline in cells, one for each declaration, and one with a helper's import."""
    text = TOTALS.replace("{job}", folder.job)
    text = text.replace("self.orders.key_by(", "self.orders.filter(wanted).key_by(")
    for name, topic in folder.topics.items():
        text = text.replace(f"{{{name}}}", topic)
    helper = "from wanted_orders import minimum\nOFFSET = 0\n\n"
    function = "def wanted(order):\n    return order.amount >= minimum() + OFFSET"
    return [helper, function, *text.strip().split("\n\n\n")]


def test_pipeline_of_cells_runs_with_what_its_cells_and_its_folder_declare(
    folder: Folder, notebook: Notebook
) -> None:
    folder.write("wanted_orders.py", "def minimum():\n    return 1\n")
    folder.orders(300)
    for cell in cells(folder):
        notebook.run(cell)
    notebook.run('raise_later = open("data-of-no-pipeline", "w")')
    run = RUN.format(kafka=folder.bootstrap)
    printed = notebook.run(f"result = {run}\nprint(result.ended, result.records_in)")
    assert "finished 300" in printed
    folder.assert_exact(300)
    written = next(folder.path.glob("totals_*_cells.py")).read_text()
    assert "# In [2]\ndef wanted(order):" in written
    assert "data-of-no-pipeline" not in written

    # A cell that runs again counts. The state of the job is that of the first run.
    notebook.run("OFFSET = 5")
    folder.orders(300, first=300)
    printed = notebook.run(f"print({run})")
    assert "records_in=300, records_out=0" in printed
    notebook.run("OFFSET = 0")
    folder.orders(3)
    notebook.run(run)
    assert b'{"customer":"c2","total":101}' in [each.value() for each in folder.read("totals")]
    assert len(folder.read("totals")) == 303
    refused(notebook, folder, run)


def refused(notebook: Notebook, folder: Folder, run: str) -> None:
    """Check that a run is refused if the file would not be what the session has."""
    for cell, words in (
        ("def wanted(order):\n    return True\nif True:\n    OFFSET = 0", None),
        ("def wanted(order):\n    return order.amount > OFFSET", "cell 14 sets in a block"),
        ("OFFSET = [0]", None),
        ("OFFSET.append(1)", "'OFFSET' of this session is not what cell 17 declares"),
        ("OFFSET = 0", None),
        ("import no_such_module\ndef wanted(order):\n    return False", "cell 21 declares"),
    ):
        failed = notebook.execute(cell)
        assert bool(failed.error) == cell.startswith("import no_such")
        if words is not None:
            error = notebook.execute(run).error
            assert error.startswith("PipelineError: "), error
            assert words in error


@pytest.mark.slow
def test_interrupt_of_the_kernel_stops_with_a_checkpoint_and_a_second_one_ends_the_cell(
    folder: Folder, notebook: Notebook
) -> None:
    folder.write("wanted_orders.py", "def minimum():\n    return 1\n")
    folder.orders(30)
    for cell in cells(folder):
        notebook.run(cell)
    run = RUN.format(kafka=folder.bootstrap).replace("bounded=True", "bounded=False")
    stopped = notebook.execute(
        f"result = {run}\nprint(result.ended)", interrupt_when=lambda text: "running, in 30" in text
    )
    assert stopped.error == ""
    assert "Ctrl-C again leaves at once" in stopped.text
    assert stopped.text.splitlines()[-1] == "stopped"
    folder.assert_exact(30)
    abandoned = notebook.execute(
        run, interrupt_when=lambda text: "running" in text or "stopping with a final" in text
    )
    assert abandoned.error.startswith("KeyboardInterrupt")
    notebook.run(RUN.format(kafka=folder.bootstrap))
    folder.assert_exact(30)
