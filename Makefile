# Everything a person types here. Each target sets up what it needs, also on a new machine.
PYTHON ?= python3
BIN := .venv/bin
BASE := .venv/.base
DEV := .venv/.dev
ENGINE := tests/engine/node_modules/.ready
FILTER ?= all
# The day on which the example was true: its allowances of empty suites expire, as they should.
EXAMPLE := --root examples/inference-engine --today 2026-12-01
export OMP_NUM_THREADS ?= 1

.PHONY: regenerate-workflows test check lint nightly-local clean

regenerate-workflows: $(BASE)
	$(BIN)/nightcap generate
	$(BIN)/nightcap $(EXAMPLE) generate

test: $(DEV) $(ENGINE)
	$(BIN)/python -m pytest -q -n auto -m "not slow"

check: lint test

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check ci gpu_tests tests benchmarks
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/nightcap generate --check || { echo "run: make regenerate-workflows" >&2; exit 1; }
	$(BIN)/nightcap $(EXAMPLE) generate --check

nightly-local: $(DEV)
	$(BIN)/nightcap local --filter "$(FILTER)"

clean:
	rm -rf .venv .nightcap tests/engine/node_modules

$(BASE): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable .
	touch $@

# torch is pinned in constraints.txt for the tests; pyproject.toml allows a range. Triton is the version for which the
# Hopper kernels are written and compiled offline; a CUDA build of torch asks for another, which no test uses.
$(DEV): $(BASE)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,torch]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps triton==3.6.0
	touch $@

$(ENGINE): tests/engine/package-lock.json
	cd tests/engine && npm ci --silent --no-audit --no-fund
	touch $@
