"""Conformance of com.acme.Swiglu."""

from oplet.testing import conformance

test_conformance = conformance("com.acme.Swiglu")
