"""Conformance of the variant that this package adds to com.microsoft.FusedGemm."""

from oplet.testing import conformance

test_conformance = conformance("com.microsoft.FusedGemm", variants=("acme_outer",))
