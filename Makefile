# All targets work on a fresh machine with Python 3.11 or newer, make and a package index.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Many tests wait for other processes: more workers than cores keep the cores busy.
WORKERS ?= 4
# The size of the soak: hand-overs, and the seconds and foreign jobs of the random part.
CYCLES ?= 10000
DURATION ?= 600
JOBS ?= 200
PYTEST := $(BIN)/python -m pytest -n $(WORKERS)

# What an installation depends on: the constraints, and pyproject.toml without the tools' settings.
INPUTS := $(shell awk '/^\[/ { keep = !/^\[+tool\.(ruff|mypy|pytest|importlinter)/ } keep' \
	pyproject.toml | cat - constraints.txt | cksum | cut -d ' ' -f 1)
INSTALLED := $(VENV)/.installed-$(INPUTS)
INSTALLED_DEV := $(VENV)/.installed-dev-$(INPUTS)
INSTALLED_SITE := $(VENV)-site/.installed-$(shell cksum < docs/mkdocs/requirements.txt | cut -d ' ' -f 1)
# Compiling every module of torch takes as long as the rest of the installation. The first import
# compiles the few that are used, even where the environment forbids bytecode.
export PYTHONDONTWRITEBYTECODE :=
# Material announces with each build that MkDocs 2 will not run it; requirements.txt pins MkDocs 1.
export NO_MKDOCS_2_WARNING := 1
PIP := $(BIN)/python -m pip --disable-pip-version-check install --no-compile \
	--constraint constraints.txt

# Words that hide which component is meant. The Unix user "nobody", in quotes, is one.
VAGUE := nobody|somebody|whoever|let be|by turns|anew|let go of|keep off

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-all fuzz soak check audit docs site dist clean

help: ## List the targets
	@echo 'make TARGET   (PYTHON=python3.12 chooses the interpreter for $(VENV))'
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 12

demo: $(INSTALLED) ## Show sentinel on two simulated GPUs, for about half a minute
	@$(BIN)/python -m sentinel demo

test: $(INSTALLED_DEV) ## Run the quick tests; those for GPUs are skipped without one
	@$(BIN)/python -m compileall -q sentinel
	@$(PYTEST) -m 'not long' -p no:schemathesis $(ARGS)

test-all: $(INSTALLED_DEV) ## Run all tests, with many examples of each property
	@$(BIN)/python -m compileall -q sentinel
	@$(PYTEST) --hypothesis-profile long $(ARGS)

fuzz: $(INSTALLED_DEV) ## Try 1,000 inputs on every parser and as requests, and every crash point, for 20 minutes
	@$(PYTEST) --hypothesis-profile fuzz $(addprefix tests/,unit/test_fuzzing.py \
		integration/api/test_hostile_requests.py integration/supervisor/test_crash_points.py) $(ARGS)

soak: $(INSTALLED_DEV) ## Do 10,000 hand-overs, then ten minutes of random jobs, for some hours
	@$(BIN)/python -m benchmarks.soak --cycles $(CYCLES)
	@$(BIN)/python -m benchmarks.random_jobs --seconds $(DURATION) --jobs $(JOBS)

check: $(INSTALLED_DEV) ## Check format, lint, types, imports and words
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports
	@git rev-parse --is-inside-work-tree >/dev/null
	@! git grep -nwiE '$(VAGUE)' -- '*.py' '*.md' '*.js' deploy | grep -vE '["`]nobody["`]'

audit: $(INSTALLED) ## Look the dependencies up among known vulnerabilities, and list them in build/bom.json
	@$(PYTHON) -m venv $(VENV)-audit
	@$(VENV)-audit/bin/python -m pip --disable-pip-version-check install --quiet pip-audit cyclonedx-bom
	@mkdir -p build
	@$(VENV)-audit/bin/cyclonedx-py environment $(BIN)/python --output-format JSON -o build/bom.json
	$(VENV)-audit/bin/pip-audit --requirement constraints.txt --no-deps --disable-pip

docs: $(INSTALLED) ## Generate the tables in docs/, the manual page and the OpenAPI document
	$(BIN)/python docs/generate.py

site: $(INSTALLED_SITE) ## Render the documents as a site that can be searched, in site/, and check its links
	@$(VENV)-site/bin/mkdocs build --strict --quiet --config-file docs/mkdocs/mkdocs.yml
	@echo 'Open site/index.html'

dist: ## Build the wheel and the source distribution in dist/, and check what an index would show
	@rm -rf dist
	@$(PYTHON) -m venv $(VENV)-dist
	@$(VENV)-dist/bin/python -m pip --disable-pip-version-check install --quiet build twine
	$(VENV)-dist/bin/python -m build --outdir dist
	$(VENV)-dist/bin/twine check --strict dist/*

clean: ## Remove everything that can be made again
	rm -rf $(VENV) $(VENV)-audit $(VENV)-dist $(VENV)-site build dist site docs/sentinel.1 docs/openapi.json docs/completion docs/index_page.md .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find sentinel tests -name __pycache__ -prune -exec rm -rf {} +

# Another input gives the stamp another name, and the environment is made from scratch: packages
# that are no longer needed do not stay.
$(INSTALLED):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo 'sentinel needs Python 3.11 or newer: make PYTHON=python3.12' >&2; exit 1; }
	@rm -rf $(VENV)
	@echo 'Creating $(VENV)'
	@$(PYTHON) -m venv $(VENV)
	@echo 'Installing sentinel; torch is most of the download (0.2 GB, with CUDA about 3 GB)'
	@$(PIP) --editable '.[tui]'
	@touch $@

$(INSTALLED_DEV): $(INSTALLED)
	@echo 'Installing what development needs'
	@$(PIP) --quiet --editable '.[dev]'
	@echo 'Compiling what the tests import: each of their workers would do it otherwise'
	-@$(BIN)/python -m pytest --collect-only --quiet --quiet >/dev/null 2>&1
	@touch $@

$(INSTALLED_SITE):
	@rm -rf $(VENV)-site
	@$(PYTHON) -m venv $(VENV)-site
	@$(VENV)-site/bin/python -m pip --disable-pip-version-check install --quiet --requirement docs/mkdocs/requirements.txt
	@touch $@
