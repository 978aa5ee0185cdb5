"""Draws the diagrams of the documentation into docs/assets/.

    python -m integration.website.diagrams

tests/harness/test_site.py compares the files with what this module draws.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from integration.website.svg import Drawing
from tidegate.graph.key_groups import key_group_range
from tidegate.ids import SubtaskIndex

ASSETS = Path(__file__).parents[2] / "docs" / "assets"


def record() -> Drawing:
    """Draw what happens to one record."""
    art = Drawing(960, 330, "A record goes from a topic through two slots into a topic")
    art.titled_box((20, 120), (120, 90), "kafka", "topic orders", "4 partitions")
    art.box(190, 40, 250, 250, "process")
    art.words(315, 64, "slot process 0", "title mid")
    art.titled_box((210, 80), (210, 56), "step", "source", "reads a batch, decodes it")
    art.titled_box((210, 156), (210, 56), "step", "map, filter", "one generated loop")
    art.titled_box((210, 232), (210, 44), "step", "key_by", "key → key group → slot")
    art.box(520, 40, 250, 250, "process")
    art.words(645, 64, "slot process 1", "title mid")
    art.titled_box((540, 80), (210, 56), "step", "process", "your function, for one key")
    art.titled_box((540, 156), (210, 56), "storage", "state", "cache over RocksDB")
    art.titled_box((540, 232), (210, 44), "step", "sink", "writes into a transaction")
    art.titled_box((820, 120), (120, 90), "kafka", "order-totals", "invisible until", "the commit")
    art.arrow((140, 165), (165, 165), (165, 108), (210, 108))
    art.arrow((315, 136), (315, 156))
    art.arrow((315, 212), (315, 232))
    art.arrow((420, 254), (480, 254), (480, 108), (540, 108))
    art.words(480, 308, "frames with credit", "small mid faint")
    art.arrow((620, 136), (620, 156))
    art.arrow((670, 156), (670, 136))
    art.arrow((750, 108), (762, 108), (762, 254), (750, 254))
    art.arrow((750, 262), (795, 262), (795, 165), (820, 165))
    return art


def checkpoint() -> Drawing:
    """Draw the messages of one checkpoint, in order of time."""
    art = Drawing(960, 560, "The steps of a checkpoint, from the barrier to the visible output")
    lanes = {"JobMaster": 130, "slots": 370, "checkpoint storage": 610, "Kafka": 840}
    kinds = dict(zip(lanes, ("process", "process", "storage", "kafka"), strict=True))
    for name, x in lanes.items():
        art.titled_box((x - 85, 20), (170, 40), kinds[name], name)
        art.parts.append(f'<line class="line dashed" x1="{x}" y1="60" x2="{x}" y2="540"/>')
    master, slots, storage, kafka = lanes.values()

    def send(number: int, y: float, start: float, end: float, words: str) -> None:
        art.arrow((start, y), (end, y))
        art.words((start + end) / 2, y - 7, f"{number}  {words}", "small mid halo")

    def note(number: int, y: float, x: float, *words: str) -> None:
        art.box(x - 100, y - 17, 200, 14 + 18 * len(words), "step")
        for row, line in enumerate(words):
            art.words(x, y + 2 + 18 * row, f"{number}  {line}" if not row else line, "small mid")

    send(1, 95, master, slots, "trigger: inject barriers")
    note(2, 125, slots, "align, copy changed state")
    send(3, 190, slots, kafka, "flush; the transactions are prepared")
    send(4, 230, slots, storage, "upload state files")
    send(5, 270, slots, master, "acknowledge")
    send(6, 310, master, storage, "manifest")
    art.arrow((master, 360), (storage, 360), style="markline")
    art.words((master + storage) / 2, 352, "7  publication: one journal entry", "small mid halo")
    art.parts.append('<line class="line markline" x1="30" y1="380" x2="930" y2="380"/>')
    art.words(40, 398, "the commit point: before it, everything is read again;", "small halo")
    art.words(40, 414, "after it, everything is committed, by any JobMaster", "small halo")
    send(8, 450, master, kafka, "EndTxn(commit) for each listed transaction")
    send(9, 490, master, storage, "settled")
    note(10, 512, kafka, "read_committed readers", "see the output")
    return art


def processes() -> Drawing:
    """Draw the processes of a cluster and their parents."""
    art = Drawing(960, 380, "The client starts the JobManager, and this one starts all others")
    art.titled_box((30, 150), (150, 80), "step", "tidegate run", "or submit, status,", "stop")
    art.titled_box(
        (250, 60),
        (190, 100),
        "process",
        "JobManager",
        "jobs, TaskManagers, slots",
        "one per cluster",
    )
    art.titled_box(
        (250, 230),
        (190, 100),
        "process",
        "JobMaster",
        "attempts, checkpoints,",
        "commits; one per job",
    )
    art.box(520, 30, 210, 320, "process")
    art.words(625, 56, "TaskManager", "title mid")
    art.words(625, 76, "one per host, or more", "small mid")
    for index in range(3):
        art.titled_box(
            (540, 92 + 84 * index),
            (170, 68),
            "step",
            f"slot process {index}",
            "subtask of every step",
            "its state in RocksDB",
        )
    art.titled_box((800, 60), (140, 90), "kafka", "Kafka", "input, output,", "transactions")
    art.titled_box(
        (800, 230), (140, 100), "storage", "checkpoint", "storage: journal,", "manifests, state"
    )
    art.arrow((180, 175), (215, 175), (215, 110), (250, 110))
    art.arrow((345, 160), (345, 230))
    art.arrow((440, 100), (520, 100))
    art.arrow((440, 260), (520, 260))
    art.words(480, 250, "deploys", "small mid")
    art.words(372, 200, "starts", "small")
    art.words(480, 90, "starts", "small mid")
    art.arrow((710, 126), (800, 105))
    art.arrow((710, 294), (800, 285))
    art.arrow((345, 330), (345, 364), (870, 364), (870, 330))
    return art


def rescale() -> Drawing:
    """Draw which subtask owns which key groups, at two parallelisms."""
    groups, left, cell = 128, 40, 880 / 128
    art = Drawing(960, 330, "Key groups move as ranges when the parallelism changes")
    art.words(
        left,
        36,
        "key → hash of its bytes → one of 128 key groups. A subtask owns a range.",
        "title",
    )
    for parallelism, y, words in ((2, 70, "-p 2"), (3, 220, "-p 3")):
        art.words(left, y - 8, words, "mono")
        for subtask in range(parallelism):
            owned = key_group_range(SubtaskIndex(subtask), parallelism, groups)
            x, width = left + owned.start * cell, len(owned) * cell
            art.titled_box(
                (x, y),
                (width, 70),
                "abc"[subtask],
                f"subtask {subtask}",
                f"groups {owned.start} to {owned.stop - 1}",
            )
    for subtask in range(3):
        new = key_group_range(SubtaskIndex(subtask), 3, groups)
        for earlier in range(2):
            old = key_group_range(SubtaskIndex(earlier), 2, groups)
            start, stop = max(new.start, old.start), min(new.stop, old.stop)
            if start < stop:
                x = left + (start + stop) / 2 * cell
                art.arrow((x, 142), (x, 218))
    art.words(
        left,
        316,
        "Each new subtask reads its ranges from the files of the checkpoint.",
        "small faint",
    )
    return art


DRAWINGS: dict[str, Callable[[], Drawing]] = {
    "record": record,
    "checkpoint": checkpoint,
    "processes": processes,
    "rescale": rescale,
}


def main() -> None:
    """Write every diagram into docs/assets/."""
    ASSETS.mkdir(exist_ok=True)
    for name, draw in DRAWINGS.items():
        (ASSETS / f"{name}.svg").write_text(draw().text(), encoding="utf-8")


if __name__ == "__main__":
    main()
