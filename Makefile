# make demo      the first op, on this machine, on real data
# make test      lint, type check and every test on wgpu, those of the packages on Dawn too
# make docs      the documentation, in .cache/docs
# make oracles   records anew what torch and transformers compute, which some tests compare with
#
# The first three prepare what they need: .venv, and for demo and test a software Vulkan driver where the machine has no
# GPU driver. The last makes an environment of its own, of some gigabytes, for the machine's Python or PYTHON.
# PYTHON=python3.12 make …  takes another Python (3.11 or newer).

PYTHON ?= python3
PACKAGES := core/pyproject.toml $(wildcard plugins/*/pyproject.toml)

.PHONY: demo test docs oracles clean
.DELETE_ON_ERROR:

demo: .venv/.ready
	@setup/driver
	@.venv/bin/python examples/digits.py

test: .venv/.ready
	@setup/driver
	@setup/test

docs: .venv/.ready
	@.venv/bin/sphinx-build -W --keep-going -q docs .cache/docs

ORACLES := plugins/gated_delta_net/tests/gdn

oracles: .cache/oracles/.ready
	@.cache/oracles/bin/python $(ORACLES)/make_oracles.py

.cache/oracles/.ready: $(ORACLES)/oracles-requirements.txt
	@"$(PYTHON)" -m venv --clear .cache/oracles
	@.cache/oracles/bin/pip install --quiet --disable-pip-version-check -r $<
	@touch $@

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
