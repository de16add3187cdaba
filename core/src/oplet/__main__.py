"""`python -m oplet`: the `oplet` command."""

from __future__ import annotations

from oplet.cli import main

main(prog_name="oplet")
