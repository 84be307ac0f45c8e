# Everything people and CI run. Each target sets up what it needs in .venv.
#   make demo              the main job on an embedded synthetic log
#   make test              the tests; TALEREC_DATA=DIR adds the real logs, EXTRAS=all the heavy parts
#   make check             lint, format, types, the rules of tools/house.py, the names in the docs
#   make docs              the documentation site, in build/docs
#   make release-check     wheel, sdist, licences, parts list, every extra installed alone
#   make bench             the benchmarks (see benchmarks/README.md)

PYTHON ?= python3
EXTRAS ?=
BIN := .venv/bin
SITE := $(BIN)/sphinx-build --fail-on-warning --keep-going --nitpicky --quiet -b html
# pip compiles twenty thousand modules on one core; here all cores do, and leave out those of others' tests.
PIP := PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/pip install --quiet --no-compile -c constraints.txt
COMPILE := $(BIN)/python -m compileall -qq -j 0 -x /tests/ .venv/lib || true
comma := ,
EXTRA_LIST := $(if $(filter all,$(EXTRAS)),$(comma)docs$(comma)content$(comma)torch$(comma)rank$(comma)serve$(comma)browser$(comma)spark$(comma)databases$(comma)stand-ins$(comma)trace)
READY := .venv/.ready-dev$(EXTRAS)
READY_DOCS := $(if $(filter all,$(EXTRAS)),$(READY),.venv/.ready-docs)
# Tests start hundreds of processes, each of which would compile every module again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup demo test check lint types site docs release-check bench clean

setup: $(READY)

.venv/.python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "talerec needs Python 3.11 or newer (PYTHON=... names another)"; exit 1; }
	@echo "setting up .venv (a minute or so, once)"
	@$(PYTHON) -m venv .venv
	@touch $@

.venv/.ready: .venv/.python pyproject.toml constraints.txt
	@$(PIP) -e .
	@$(COMPILE)
	@touch $@

$(READY): .venv/.python pyproject.toml constraints.txt
	@$(PIP) -e ".[dev$(EXTRA_LIST)]"
	@$(COMPILE)
	@touch $@ .venv/.ready

# Tests of the page need a browser; where none can be installed they say so and are skipped.
.venv/.browser: .venv/.python
	@command -v chromium > /dev/null || { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; } > /dev/null 2>&1 || echo "no browser could be installed: tests of the page are skipped"
	@touch $@

demo: .venv/.ready
	@$(BIN)/talerec demo

test: $(READY) $(if $(filter all,$(EXTRAS)),.venv/.browser)
	@EXTRAS=$(EXTRAS) $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile --durations 25

.venv/.ready-docs: .venv/.python pyproject.toml constraints.txt
	@$(PIP) -e ".[docs,serve]"
	@$(COMPILE)
	@touch $@

docs: $(READY_DOCS)
	@$(BIN)/python docs/pictures.py
	@$(SITE) docs build/docs
	@echo "open build/docs/index.html"

.venv/.ready-release: .venv/.python pyproject.toml constraints.txt
	@$(PIP) -e ".[release]"
	@$(COMPILE)
	@touch $@

release-check: .venv/.ready-release
	@$(BIN)/python tools/release.py

# Two at a time: types and the site take a minute each, on one core.
check: $(READY) $(READY_DOCS)
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target types lint site

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python tools/house.py src/talerec --rooms tools/rooms.toml --check
	$(BIN)/python tools/docnames.py

types: $(READY)
	$(BIN)/mypy --strict src tools

site: $(READY_DOCS)
	$(BIN)/python docs/pictures.py
	TALEREC_NOTEBOOKS=off $(SITE) docs build/docs-check

bench: $(READY)
	@for name in gram published exact skew scale query ranking lists update tempo serve steady attacks $(if $(filter all,$(EXTRAS)),spark); do \
		echo "== benchmarks/$$name.py"; $(BIN)/python benchmarks/$$name.py || exit 1; done

clean:
	rm -rf .venv build dist talerec-demo .pytest_cache .mypy_cache .ruff_cache .hypothesis
