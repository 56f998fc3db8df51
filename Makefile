# make heads   set up, train the quickstart model on real text, show its heads, write the report
# make test    the whole test suite
# make test-gpu   the attention contract and the kernels on this machine's GPU, with PYTHON or .venv's
# make check   format, lint and types
# make notebooks   run every notebook from top to bottom and keep its outputs (about ten minutes)

VENV ?= .venv
BIN := $(VENV)/bin
RUNS ?= runs
CONFIG ?= configs/quickstart.toml
RUN_OVERRIDES ?=

.PHONY: heads notebooks test test-fast test-gpu check format clean

heads: $(VENV)/installed
	@run=$$($(BIN)/andrea train $(CONFIG) $(RUN_OVERRIDES) --runs $(RUNS) --json | $(BIN)/python -c 'import json, sys; print(json.load(sys.stdin)["run"])') \
	&& $(BIN)/andrea heads $$run --all && report=$$($(BIN)/andrea report $$run) && echo "report: $$report"

notebooks: $(VENV)/installed
	$(BIN)/python notebooks/execute.py notebooks/*.ipynb

test: $(VENV)/installed
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow"
	$(BIN)/python -m pytest -n 2 --dist worksteal -m slow

test-fast: $(VENV)/installed
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow"

test-gpu:
	$(or $(PYTHON),$(BIN)/python) -m pytest -p no:cacheprovider tests/attention tests/kernels

check: $(VENV)/installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright --pythonpath $(BIN)/python

format: $(VENV)/installed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The environment: made with the first Python >= 3.12 found. Set PYTHON to name the one to use.
$(VENV)/installed: requirements.txt pyproject.toml
	@python=""; \
	for candidate in $(or $(PYTHON),python3.12 python3.13 python3.14 python3 python $$HOME/.pyenv/versions/3.1[2-9]*/bin/python3); do \
	    if "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2>/dev/null; then python="$$candidate"; break; fi; \
	done; \
	if [ -z "$$python" ]; then \
	    echo "error: no Python 3.12 or newer was found$(if $(PYTHON), at PYTHON=$(PYTHON)) (jax needs it). Install one, or name it: make PYTHON=/path/to/python3.12" >&2; exit 2; \
	fi; \
	if ! "$$python" -c 'import venv, ensurepip' 2>/dev/null; then \
	    echo "error: $$python has no venv module; on Debian and Ubuntu: apt install python3-venv" >&2; exit 2; \
	fi; \
	echo "setting up $(VENV) with $$("$$python" --version), about a minute"; \
	"$$python" -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis
