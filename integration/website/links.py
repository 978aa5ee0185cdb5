"""Leads links of Markdown from files of the repository to pages of the site. Pure text."""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath

OUTSIDE = {
    "ARCHITECTURE.md": "internals/architecture.md",
    "CHANGELOG.md": "changes.md",
    "CONTRIBUTING.md": "internals/contributing.md",
    "docker/README.md": "guides/containers.md",
    "integration/bench/README.md": "evidence/how-benchmarks-measure.md",
    "pipelines/README.md": "guides/examples.md",
}
"""Pages that stand outside of docs/, each with its place in the site."""

SAME = {
    "README.md": "index.md",
    "framework/tidegate/default.toml": "reference/settings.md",
    "docker": "guides/containers.md",
    "pipelines": "guides/examples.md",
    "docs/internals/decisions": "internals/decisions/README.md",
}
"""Files that are no pages, each with the page that says the same."""

LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def repository_path(page: str) -> str:
    """Return the path in the repository of a page of the site."""
    outside = {to: path for path, to in OUTSIDE.items()}
    return outside.get(page, f"docs/{page}")


def site_links(text: str, source: str, root: Path) -> str:
    """Return the text of the file `source` with links that lead to pages.

    A link that leads nowhere stays as it is, so that the build reports it.
    """
    here = PurePosixPath(OUTSIDE.get(source, source.removeprefix("docs/"))).parent

    def changed(found: re.Match[str]) -> str:
        mark, words, target = found.groups()
        path, hash_, anchor = target.partition("#")
        if not path or re.match(r"[a-z]+:", target):
            return found[0]
        wanted = os.path.normpath(PurePosixPath(source).parent / path)
        page = OUTSIDE.get(wanted) or SAME.get(wanted)
        if page is None and wanted.startswith("docs/"):
            page = wanted.removeprefix("docs/")
        if page is None:
            return words if (root / wanted).exists() else found[0]
        return f"{mark}[{words}]({os.path.relpath(page, here)}{hash_}{anchor})"

    return LINK.sub(changed, text)
