"""Sphinx: every page is a MyST text beside this file."""

import viakit

project = "viakit"
copyright = "viakit contributors"
release = version = viakit.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.intersphinx"]
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
autodoc_member_order = "bysource"
html_theme = "furo"
html_title = f"viakit {version}"
