# Everything here works on a fresh machine with Python 3.11 or newer, make and a package index.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Most tests wait for other processes: more of them than cores keep the cores busy.
WORKERS ?= 5
STAMP := $(VENV)/.made-from-pyproject-and-constraints

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test check clean

help: ## Say what can be made
	@echo 'make TARGET   (PYTHON=python3.12 chooses the interpreter for $(VENV))'
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 10

demo: $(STAMP) ## Show sentinel at work on two simulated GPUs, for about half a minute
	@$(BIN)/python -m sentinel demo

# Compiled first: the tests start hundreds of processes, and where none of them may write bytecode,
# as some environments have it, each would compile all of it anew.
test: $(STAMP) ## Run the tests; those that need a GPU are skipped without one
	@$(BIN)/python -m compileall -q sentinel
	@$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(ARGS)

check: $(STAMP) ## Check format, lint, types and who imports whom
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports

clean: ## Remove everything that can be made again
	rm -rf $(VENV) build .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find sentinel -name __pycache__ -prune -exec rm -rf {} +

# Made anew when, and only when, what goes into it has changed. The constraints choose the versions,
# torch's among them.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo 'sentinel needs Python 3.11 or newer; say which: make PYTHON=python3.12' >&2; exit 1; }
	@echo 'Setting up $(VENV) (once)'
	@rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		--constraint constraints.txt --editable '.[dev]'
	@touch $@
