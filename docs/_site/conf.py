"""Configuration of the documentation site; `scripts/docs` builds it.

The source folder is the root of the repository, so that relative links between pages, README.md and the recipes work in
the site as they do in the files.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

project = "Dragoman"
author = "The Dragoman authors"
copyright = author
extensions = ["myst_parser", "sphinx.ext.autodoc"]
extensions += ["mathml", "diagrams", "anchors", "docstrings", "searching", "live", "pages"]
root_doc = "docs/index"
include_patterns = ["docs/**.md", "recipes/**/README.md", "CHANGELOG.md", "README.md"]
exclude_patterns = ["docs/results", "docs/locale", "docs/_site"]
templates_path = ["templates"]
html_static_path = ["static"]

myst_enable_extensions = ["dollarmath", "deflist"]
myst_heading_anchors = 4
myst_fence_as_directive = ["mermaid"]
suppress_warnings = ["myst.header"]  # pages of GitHub may start below the first level

autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 70
python_use_unqualified_type_names = True
toc_object_entries_show_parents = "hide"

locale_dirs = ["docs/locale", "docs/_site/locale"]  # relative to the source folder
gettext_compact = False
gettext_location = False
gettext_additional_targets = ["image"]

html_theme = "furo"
html_title = "Dragoman"
html_favicon = "static/icon.svg"
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_search_scorer = str(Path(__file__).parent / "static" / "scorer.js")
html_show_sourcelink = False
html_copy_source = False
html_sidebars = {
    "**": [
        "sidebar/brand.html",
        "language.html",
        "sidebar/search.html",
        "sidebar/scroll-start.html",
        "sidebar/navigation.html",
        "sidebar/scroll-end.html",
    ]
}
