"""What a message or a journal entry is on the wire and on disk does not depend on its class."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tidegate.commit.journal import entries
from tidegate.protocol import codec, messages, reports

KINDS = [*codec._KINDS, *entries.AnyEntry.__args__]
MODULES = {"messages": messages, "reports": reports, "journal": entries}


@pytest.mark.parametrize("module", MODULES.values(), ids=MODULES.keys())
def test_every_class_of_a_message_or_a_journal_entry_has_a_literal_tag(module: object) -> None:
    """Without a written tag a renamed class would change what is stored and sent."""
    tree = ast.parse(Path(str(vars(module)["__file__"])).read_text(encoding="utf-8"))
    bases = {"Message", "LeaderMessage", "AttemptMessage", "SlotCommand", "Entry"}
    classes = [
        node
        for node in tree.body
        if isinstance(node, ast.ClassDef) and {ast.unparse(base) for base in node.bases} & bases
    ]
    untagged = [
        node.name
        for node in classes
        if node.name not in bases
        and not any(
            keyword.arg == "tag" and isinstance(keyword.value, ast.Constant)
            for keyword in node.keywords
        )
    ]
    assert classes
    assert not untagged


def test_tags_of_messages_and_journal_entries_are_unique() -> None:
    tags = [kind.__struct_config__.tag for kind in KINDS]
    assert len(set(tags)) == len(tags)
