"""Parts of a slot process that need no cluster: mailbox, folders, which sources keep their keys."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from tidegate.api.formats import Raw
from tidegate.api.kafka import KafkaSink, KafkaSource
from tidegate.api.pipeline import Pipeline, build
from tidegate.drivers.threads import SystemThreads
from tidegate.slot.assembly import source_keys_wanted
from tidegate.slot.mailbox import Mailbox
from tidegate.slot.main import remove_older


def test_what_an_action_posts_waits_for_the_next_round() -> None:
    mailbox, story = Mailbox(SystemThreads()), []

    def first() -> None:
        story.append("first")
        mailbox.post(lambda: story.append("posted by first"))

    mailbox.post(first)
    mailbox.post(lambda: story.append("second"))
    mailbox.run_posted()
    assert story == ["first", "second"]
    mailbox.run_posted()
    assert story == ["first", "second", "posted by first"]


def test_a_post_wakes_a_waiting_mailbox() -> None:
    mailbox = Mailbox(SystemThreads())
    threading.Timer(0.05, lambda: mailbox.post(lambda: None)).start()
    began = time.monotonic()
    mailbox.wait(10)
    assert time.monotonic() - began < 5


def test_only_folders_of_older_attempts_are_removed(tmp_path: Path) -> None:
    for name in ("3", "4", "5", "notes"):
        (tmp_path / name / "0").mkdir(parents=True)
    remove_older(tmp_path, 4)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["4", "5", "notes"]


class Kept(Pipeline, name="kept"):
    """One sink keeps source keys, the other makes its own."""

    kept_source = KafkaSource("a", value=Raw())
    keyed_source = KafkaSource("b", value=Raw())
    kept = KafkaSink("c", value=Raw())
    keyed = KafkaSink("d", value=Raw(), key_by=lambda value: value)

    def define(self) -> None:
        self.kept_source.filter(bool).map(lambda value: value).to(self.kept)
        self.keyed_source.to(self.keyed)


def test_source_keys_are_carried_only_where_a_sink_without_key_by_is_reached() -> None:
    graph = build(Kept)
    assert source_keys_wanted(graph, "kept_source")
    assert not source_keys_wanted(graph, "keyed_source")
