# make demo    run a small reproduction; about a minute after the set-up
# make test    run the tests, in minutes   make test-all  with the slow ones too
# make check   format, lint, imports, types     make format    rewrite the sources
# make docs    the documentation as pages, in runs/docs; warnings are errors
# make clean   remove the virtual environment
# make matrix  run the quick tests with the lowest and the pinned versions, on every Python
#              here; gigabytes and an hour. MATRIX='lowest --python python3.11' is one of them
#
# This needs Python 3.11 or later with its venv module, and nothing else.

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install -c constraints.txt
DEMO := --trials 10 --horizon 2000
PYTEST :=
MATRIX :=
# test processes, one a core and at most four: each loads torch
PROCESSES := -n logical --maxprocesses 4 --dist loadgroup

.PHONY: demo test test-all check format docs clean matrix
.DELETE_ON_ERROR:

demo: $(VENV)/.demo-ready
	@rm -rf runs/demo
	$(BIN)/cbandit reproduce zhou-synthetic $(DEMO) --out runs/demo

test: $(VENV)/.dev-ready
	$(BIN)/python -m pytest $(PROCESSES) -m "not slow and not dist" $(PYTEST)

test-all: $(VENV)/.dev-ready
	$(BIN)/python -m pytest $(PROCESSES) $(PYTEST)

check: $(VENV)/.dev-ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/mypy

format: $(VENV)/.dev-ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.dev-ready
	$(BIN)/sphinx-build -q -W --keep-going -b html docs runs/docs

matrix: $(VENV)/.made
	$(BIN)/python tests/common/matrix.py $(MATRIX)

clean:
	rm -rf $(VENV)

# Editable installs. The build uses this environment, in which all versions are pinned.
$(VENV)/.demo-ready: pyproject.toml constraints.txt | $(VENV)/.made
	$(PIP) hatchling editables
	$(PIP) --no-build-isolation --editable '.[experiments,native]'
	@touch $@

$(VENV)/.dev-ready: pyproject.toml constraints.txt | $(VENV)/.made
	$(PIP) hatchling editables
	$(PIP) --no-build-isolation --editable '.[dev]'
	@touch $@ $(VENV)/.demo-ready

$(VENV)/.made:
	@for each in $(PYTHON) python3 python3.14 python3.13 python3.12 python3.11; do \
	  if $$each -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	    found=$$each; break; \
	  fi; \
	done; \
	if [ -z "$$found" ]; then \
	  echo 'cbandit needs Python 3.11 or later, and neither python3 nor python3.11 to' \
	    'python3.14 is that. Install one, or name it: make PYTHON=/path/to/python' >&2; \
	  exit 1; \
	fi; \
	if ! $$found -c 'import ensurepip, venv' 2>/dev/null; then \
	  echo "$$found has no venv module: install it first" \
	    '(Debian and Ubuntu: sudo apt install python3-venv)' >&2; \
	  exit 1; \
	fi; \
	rm -rf $(VENV) && $$found -m venv $(VENV) && touch $@
