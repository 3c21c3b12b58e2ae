"""The settings of Sphinx for the documentation: ``make docs``."""

import os
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "kernels")]

# notebooks name each other by paths, so they must lie side by side below this folder
shutil.copytree(ROOT / "notebooks", ROOT / "docs" / "notebooks", dirs_exist_ok=True)

project = "cbandit"
author = copyright = "the cbandit authors"
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.intersphinx",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinxcontrib.bibtex",
    "sphinx_copybutton",
]
exclude_patterns = ["build", "**/.ipynb_checkpoints"]
bibtex_bibfiles = ["references.bib"]
bibtex_reference_style = "author_year"
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath", "smartquotes"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # notebooks hold their outputs, and tests run them
napoleon_custom_sections = [("Common", "params_style")]
napoleon_use_ivar = True
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the Args sections name shapes, which types cannot
autosummary_generate = True
templates_path = ["templates"]
html_theme = "pydata_sphinx_theme"
html_title = "cbandit"
html_theme_options = {"navigation_with_keys": False, "show_prev_next": False}
suppress_warnings = ["mystnb.unknown_mime_type"]

# The inventories lie on the network, which a build may not reach.
if os.environ.get("READTHEDOCS") or os.environ.get("CBANDIT_DOCS_ONLINE"):
    intersphinx_mapping = {
        "python": ("https://docs.python.org/3", None),
        "torch": ("https://pytorch.org/docs/stable", None),
        "gpytorch": ("https://docs.gpytorch.ai/en/stable", None),
        "botorch": ("https://botorch.readthedocs.io/en/stable", None),
    }
