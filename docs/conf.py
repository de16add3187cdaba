"""How the documentation is built: `sphinx-build -W docs .cache/docs`, a part of `make test`."""

import sys
from importlib.metadata import version as version_of
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

project = "oplet"
author = "the oplet developers"
version = release = version_of("oplet")
extensions = ["myst_parser", "op_pages", "measured_pages"]
myst_heading_anchors = 3
smartquotes = False  # A' is a matrix
html_theme = "furo"
html_title = f"oplet {release}"
html_copy_source = False
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True}
pygments_style = "friendly"
# In what a command prints, … stands for anything; no lexer knows that.
highlight_language = "none"
suppress_warnings = ["misc.highlighting_failure"]
