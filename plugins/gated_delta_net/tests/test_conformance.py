"""Every case on every variant."""

from oplet.testing import conformance

test_conformance = conformance("com.microsoft.GatedDeltaNet")
