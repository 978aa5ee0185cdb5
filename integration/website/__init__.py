"""Makes the documentation site, its diagrams and its recording from the repository.

`make docs` builds the site from docs/ with MkDocs. `hooks.py` is what MkDocs calls. This package is
no part of tidegate, and nothing in the framework imports it.
"""
