"""The documentation site: `make docs`. Pages are Markdown, the API comes from docstrings, and warnings are errors."""

from __future__ import annotations

import os
import re
from typing import Any

import talerec

project = "talerec"
author = "the talerec authors"
copyright = "2026, the talerec authors"
version = release = talerec.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["made"]
nitpicky = True
smartquotes = False  # S'S is a product

# -- Markdown and notebooks --

myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = os.environ.get("TALEREC_NOTEBOOKS", "cache")  # or off
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_merge_streams = True

# -- the API from docstrings --

autodoc_typehints = "none"
autodoc_member_order = "bysource"
autodoc_class_signature = "mixed"
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_use_param = False
default_role = "py:obj"  # a name in a docstring is a link where it is a public one

# -- how it looks --

html_theme = "furo"
html_title = "talerec"
html_static_path = ["static"]
html_extra_path = ["made"]  # the gallery's pages, which pictures.py makes
html_css_files = ["site.css"]
html_favicon = "static/mark.svg"
html_theme_options = {
    "sidebar_hide_name": False,
    "light_css_variables": {
        "color-brand-primary": "#0b6e6e",
        "color-brand-content": "#0b6e6e",
        "color-code-block": "#f0f0f0",
    },
    "dark_css_variables": {
        "color-brand-primary": "#4cc3b8",
        "color-brand-content": "#4cc3b8",
        "color-code-block": "#202020",
    },
}
pygments_style = "friendly"
pygments_dark_style = "native"
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

#: Pages of the project's root, by the page of the site that shows them.
_ELSEWHERE = {
    "ARCHITECTURE.md": "project/architecture.md",
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "benchmarks/README.md": "project/benchmarks.md",
}


_SOURCE = "https://github.com/talerec/talerec/blob/main"
#: A file of the source tree that no wheel has, named as code and not yet a link.
_FILE = re.compile(
    r"(?<!\[)`((?:benchmarks|tests|tools|deploy)/[\w./-]+\.\w+|SECURITY\.md|constraints\.txt)`"
)


def _link_pages(app: Any, name: str, source: list[str]) -> None:
    """Links to files of the project's root lead to the pages that show them, names of other files to the source tree."""
    up = "../" * (name.count("/"))
    for file, page in _ELSEWHERE.items():
        source[0] = source[0].replace(f"](../{up}{file}", f"]({up}{page}")
        source[0] = source[0].replace(f"`{file}`", f"[`{file}`]({up}{page})")
    source[0] = _FILE.sub(rf"[`\1`]({_SOURCE}/\1)", source[0])


def _link_included(app: Any, path: Any, parent: str, source: list[str]) -> None:
    """The same, in files that pages include: they speak of docs/ from where they stand."""
    up = "../" * app.env.docname.count("/")
    text = source[0].replace("](../docs/", f"]({up}").replace("](docs/", f"]({up}")
    for file, page in _ELSEWHERE.items():
        for before in ("](../", "]("):
            text = text.replace(f"{before}{file}", f"]({up}{page}")
    source[0] = text


def _plain_name(app: Any, env: Any, node: Any, content: Any) -> Any:
    """A name in a docstring that is not a public one is shown as code; other broken references are errors."""
    is_name = node.get("reftype") in ("obj", "class", "exc") and node.get("refdomain") == "py"
    return content if is_name and "talerec" not in node.get("reftarget", "") else None


def setup(app: Any) -> None:
    app.connect("source-read", _link_pages)
    app.connect("include-read", _link_included)
    app.connect("missing-reference", _plain_name)
