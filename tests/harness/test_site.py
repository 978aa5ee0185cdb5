"""The parts of the documentation site that programs write are as the programs write them today.

`make docs` builds the site and checks its links and its navigation.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

import tidegate
import tidegate.testing
from integration.website.commands import all_commands, commands_text
from integration.website.diagrams import ASSETS, DRAWINGS
from integration.website.hooks import fetched
from integration.website.links import OUTSIDE, repository_path, site_links
from integration.website.recording import draw, recorded
from integration.website.settings import settings_text

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", DRAWINGS)
def test_a_diagram_is_what_its_script_draws(name: str) -> None:
    drawn = DRAWINGS[name]().text()
    assert (ASSETS / f"{name}.svg").read_text(encoding="utf-8") == drawn, (
        "python -m integration.website.diagrams"
    )


def test_the_recording_of_the_demo_is_drawn_from_its_lines() -> None:
    drawn = draw(recorded())
    assert (ASSETS / "demo.svg").read_text(encoding="utf-8") == drawn, (
        "python -m integration.website.recording --draw"
    )
    assert drawn.count(" killed (") == 4
    assert "exact: 1,000,000 orders" in drawn
    assert "restarts" in drawn
    assert "attempt" not in drawn, "their numbers look like failures"


@pytest.mark.parametrize("drawing", sorted(ASSETS.glob("*.svg")), ids=lambda path: path.stem)
def test_a_drawing_fetches_nothing_and_has_a_title(drawing: Path) -> None:
    tree = ET.parse(drawing)
    assert tree.find("{http://www.w3.org/2000/svg}title") is not None
    assert not re.search(r"href=|url\(|@import|<script", drawing.read_text(encoding="utf-8"))


def test_every_public_name_is_on_one_page_of_the_reference() -> None:
    pages = sorted((ROOT / "docs" / "reference" / "api").glob("*.md"))
    shown = re.findall(r"^::: (\S+)$", "\n".join(page.read_text() for page in pages), re.MULTILINE)
    public = [f"tidegate.{name}" for name in tidegate.__all__]
    public += [f"tidegate.testing.{name}" for name in tidegate.testing.__all__]
    assert sorted(name for name in shown if not name.startswith("tidegate.api.")) == sorted(public)


def test_every_command_and_option_is_in_the_reference_of_the_command_line() -> None:
    text = commands_text()
    for name, command in all_commands():
        assert f"`{name}`" in text
        options = [option for each in command.params for option in each.opts if option[:1] == "-"]
        assert [option for option in options if option not in text] == []


def test_every_setting_is_in_the_reference_with_its_default_and_its_meaning() -> None:
    default = ROOT / "framework" / "tidegate" / "default.toml"
    text = settings_text()
    for section, settings in tomllib.loads(default.read_text(encoding="utf-8")).items():
        assert f"## {section}" in text
        for name, value in settings.items():
            if not isinstance(value, dict):
                assert re.search(rf"^\| `{section}\.{name}` \| `[^`]+` \| \S+ ", text, re.MULTILINE)


def test_links_of_the_repository_become_links_of_the_site() -> None:
    text = "[a](docs/concepts/state.md#x) [b](docs/assets/a.svg) [c](framework/tidegate/ids.py)"
    assert site_links(text, "ARCHITECTURE.md", ROOT) == (
        "[a](../concepts/state.md#x) [b](../assets/a.svg) c"
    )
    assert site_links("[a](../../ARCHITECTURE.md#g)", "docs/concepts/a.md", ROOT) == (
        "[a](../internals/architecture.md#g)"
    )
    assert site_links("[a](nowhere.py)", "ARCHITECTURE.md", ROOT) == "[a](nowhere.py)"
    assert [repository_path(page) for page in OUTSIDE.values()] == list(OUTSIDE)


def test_a_page_that_fetches_from_a_network_is_found() -> None:
    html = '<a href="https://a.b/c"><img src="x.svg"><script src="https://a.b/d.js"></script>'
    assert fetched(html) == ["https://a.b/d.js"]


def test_the_readme_of_the_package_has_no_link_into_the_repository() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    hook = project["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for each in hook["substitutions"]:
        text = re.sub(each["pattern"], each["replacement"], text)
    assert re.findall(r"\]\((?!https:)[^)]*\)|<!--", text) == []
    assert "kill matrix" in text
