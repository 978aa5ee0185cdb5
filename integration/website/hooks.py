"""The hooks that MkDocs calls while it builds the site (`hooks` in mkdocs.yml).

They do four things. They add pages that stand outside of docs/, such as ARCHITECTURE.md. They
replace a marker such as `<!-- generated: settings -->` by text made from the code, so that the
reference cannot be out of date. They change links between files of the repository into links
between pages of the site. A link to another file becomes plain text.
They refuse a site that would fetch anything from a network.
"""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from integration.website.commands import commands_text
from integration.website.links import OUTSIDE, repository_path, site_links
from integration.website.settings import settings_text

ROOT = Path(__file__).parents[2]
GENERATED = {"commands": commands_text, "settings": settings_text}
DIRECTIVE = re.compile(
    r"^ *<!-- (?:not run|background|stop|exit code|output)\b.*-->\n", re.MULTILINE
)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that stand outside of docs/."""
    for path, page in OUTSIDE.items():
        text = (ROOT / path).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Fill in what is generated, and lead links to pages of the site."""
    for name, text in GENERATED.items():
        marker = f"<!-- generated: {name} -->"
        if marker in markdown:
            markdown = markdown.replace(marker, text())
    source = repository_path(page.file.src_uri)
    return DIRECTIVE.sub("", site_links(markdown, source, ROOT))


def on_post_build(config: MkDocsConfig) -> None:
    """Refuse pages that load a script, a style, a font or a picture from a network."""
    for page in Path(config.site_dir).rglob("*.html"):
        for found in fetched(page.read_text(encoding="utf-8")):
            raise PluginError(f"{page} fetches {found}. Put a copy of it into docs/assets.")


def fetched(html: str) -> list[str]:
    """Return what a browser fetches from a network when it opens this page."""
    tags = re.findall(r"<(?:script|img|iframe|source|link)\b[^>]*>", html)
    shown = (tag for tag in tags if 'rel="canonical"' not in tag)
    return [found for tag in shown for found in re.findall(r'(?:src|href)="?(https?:[^" >]+)', tag)]
