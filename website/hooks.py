"""The hooks that MkDocs calls while it builds the site (`hooks` in mkdocs.yml).

They do three things. They add pages that stand outside of docs/, such as ARCHITECTURE.md. They
replace a marker such as `<!-- generated: settings -->` by text made from the code, so that the
reference cannot be out of date. They change links between files of the repository into links
between pages of the site. A link to a file that is no page becomes plain text.
"""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from website.commands import commands_text
from website.links import OUTSIDE, repository_path, site_links
from website.settings import settings_text

ROOT = Path(__file__).parents[1]
GENERATED = {"commands": commands_text, "settings": settings_text}
DIRECTIVE = re.compile(r"^[ ]*<!-- (?:not run|background|exit code|output|project|stop).*-->\n", re.M)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that stand outside of docs/."""
    for path, page in OUTSIDE.items():
        text = (ROOT / path).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Fill in what is generated, and lead links to pages of the site."""
    for name, text in GENERATED.items():
        marker = f"<!-- generated: {name} -->"
        if marker in markdown:
            markdown = markdown.replace(marker, text())
    source = repository_path(page.file.src_uri)
    return DIRECTIVE.sub("", site_links(markdown, source, ROOT))
