# Every target sets up what it needs by itself; only Python 3.11+ must be there. `make demo` first, then `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
DEV    := $(VENV)/.ready-dev
TRACES := out/llama3-70b

.PHONY: demo test verify lint bench validate compat clean

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "tracegen needs Python 3.11 or newer; set PYTHON=…"; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(DEV): $(READY)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

demo: $(READY)  ## emit 64 ranks of Llama-3-70B, replay them, say where the time went
	$(BIN)/tracegen emit --spec llama3-70b.yaml --out $(TRACES) --jobs 2
	$(BIN)/tracegen replay --traces $(TRACES) --timeline $(TRACES).timeline.json
	@echo "Next: open $(TRACES).timeline.json at https://ui.perfetto.dev, or: $(BIN)/tracegen inspect $(TRACES)/llama3-70b.0.et"

test: $(DEV)  ## the tests, under five minutes on two cores
	$(BIN)/python -m pytest -m "not verify"

verify: $(DEV)  ## the slower checks: every example spec, many seeds, 1,024 ranks
	$(BIN)/python -m pytest -m verify

# mypy and import-linter, started at the root, would see the checkout's own tracegen/ first: they run on an installed
# copy, from a folder below the root.
lint: $(DEV)  ## ruff, mypy --strict, import layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@rm -rf build && mkdir -p build/lint
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target build/lint/installed .
	cd build/lint && MYPYPATH=installed ../../$(BIN)/mypy --config-file ../../pyproject.toml -p tracegen
	cd build/lint && PYTHONPATH=installed ../../$(BIN)/lint-imports ../../pyproject.toml --no-cache

bench: $(DEV)  ## speed and memory, as ratios against a baseline run beside it
	$(BIN)/python benchmarks/run.py

validate: $(READY)  ## predicted, measured and ratio for published runs
	$(BIN)/python benchmarks/validate.py

compat: $(DEV)  ## the schema beside another copy of it, under protobuf 4.25, 5, 6 and 7
	$(BIN)/python tests/compat/run.py

clean:
	rm -rf build out $(VENV) *.egg-info
