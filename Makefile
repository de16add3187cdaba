# make demo   the first op, on this machine, on real data
# make test   lint, type check and every test, on each WebGPU implementation
#
# Both prepare what they need first: .venv, and a software Vulkan driver where the machine has no GPU driver.
# PYTHON=python3.12 make …  takes another Python (3.11 or newer).

PYTHON ?= python3
PACKAGES := core/pyproject.toml $(wildcard plugins/*/pyproject.toml)

.PHONY: demo test clean
.DELETE_ON_ERROR:

demo: .venv/.ready
	@setup/driver
	@.venv/bin/python examples/digits.py

test: .venv/.ready
	@setup/driver
	@setup/test

# Where PYTHON is of another version than .venv, .venv is made anew.
version = $(shell $(1) -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null)
ifneq ($(call version,$(PYTHON)),$(call version,.venv/bin/python))
.PHONY: .venv/.ready
endif

.venv/.ready: requirements-dev.txt $(PACKAGES) setup/venv
	@setup/venv "$(PYTHON)"
	@touch $@

clean:
	rm -rf .venv .cache dist
