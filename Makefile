# The environment lives in .venv/ and comes from requirements.lock; every target brings what it needs.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
# Without bytecode every process of Ray compiles Ray and torch anew: each start takes two to four times as long.
unexport PYTHONDONTWRITEBYTECODE
MKDOCS = NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
STAMP := .venv/.installed
# Python compiles what it imports, once; to compile all packages takes half of the time of an installation.
PIP_QUICKLY := --quiet --disable-pip-version-check --no-compile

.PHONY: demo test slow chaos bench bench-serve bench-competitors check check-supply supply-tools docs format lock wheel wheel-check clean

# Train and serve a small model on synthetic faces, from nothing to an HTTP answer, in runs/demo.
demo: $(STAMP)
	$(BIN)/python jobs/demo.py

# Two processes: tests that start a Ray run in one of them, one after the other.
test: $(STAMP)
	$(BIN)/python -m pytest -n 2 $(TESTS)

# The tests that `make test` leaves out, for their length. BUDGET=300 TURN=N runs a slice of 300 s, another one each turn.
slow: $(STAMP)
	$(BIN)/python -m pytest --tier slow $(if $(BUDGET),--slow-budget $(BUDGET) --slow-turn $(or $(TURN),0)) $(TESTS)

# Faults at random moments, nodes and networks among them, ROUNDS of each; what was measured is printed.
ROUNDS ?= 1
chaos: $(STAMP)
	CHAOS_ROUNDS=$(ROUNDS) $(BIN)/python -m pytest --tier all --capture=no tests/faults

# Measure what is promised about speed, into runs/bench; OPTIONS='rounds=3' changes settings.
bench: $(STAMP)
	$(BIN)/fusionray bench train --output runs/bench $(OPTIONS)

bench-serve: $(STAMP)
	$(BIN)/fusionray bench serve --output runs/bench-serve $(OPTIONS)

# Other servers to measure ours against, in an environment of their own.
COMPETITORS := .venv-competitors
COMPETITORS_LIST := platform/fusionray_competitors/requirements.txt
bench-competitors: $(COMPETITORS)/.installed
$(COMPETITORS)/.installed: $(COMPETITORS_LIST)
	test -x $(COMPETITORS)/bin/python || $(PYTHON) -m venv $(COMPETITORS)
	$(COMPETITORS)/bin/python -m pip install --quiet --disable-pip-version-check --requirement $(COMPETITORS_LIST)
	$(COMPETITORS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps mediapipe==0.10.21
	touch $@

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python .ci/supply.py licences
	$(MKDOCS)

# Licences of what users install, a bill of materials, known vulnerabilities. It asks api.osv.dev for each package of the
# lock, and fails (status 3) where that cannot be reached.
check-supply: $(STAMP) supply-tools
	$(BIN)/python .ci/supply.py

SUPPLY := .venv-supply
supply-tools: $(SUPPLY)/.installed
$(SUPPLY)/.installed: .ci/supply-requirements.txt
	test -x $(SUPPLY)/bin/python || $(PYTHON) -m venv $(SUPPLY)
	$(SUPPLY)/bin/python -m pip install $(PIP_QUICKLY) --requirement .ci/supply-requirements.txt
	touch $@

# The documentation as pages, in build/site; a link that leads nowhere is an error.
docs: $(STAMP)
	$(MKDOCS)

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

wheel: $(STAMP)
	$(BIN)/python -m build --wheel

# Install the wheel into an empty environment, and prepare, train, export, fuse and serve with it, no checkout around.
wheel-check: $(STAMP)
	$(BIN)/python -m pytest --tier slow tests/test_wheel.py

# mediapipe serves as the carrier of its face models: its code and its own dependencies stay out.
$(STAMP): requirements.lock pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	PIP_CONSTRAINT=requirements.lock $(BIN)/python -m pip install $(PIP_QUICKLY) --editable '.[dev]'
	PIP_CONSTRAINT=requirements.lock $(BIN)/python -m pip install $(PIP_QUICKLY) --no-deps mediapipe
	touch $(STAMP)

# Resolve anew and write exact versions. A local build's label (torch 2.13.0+cpu) is cut off, so that the lock serves
# the CPU build and the CUDA build alike; what only the CUDA build wants is pinned by torch itself.
lock:
	rm -rf .venv-lock && $(PYTHON) -m venv .venv-lock
	.venv-lock/bin/python -m pip install --quiet --upgrade --editable '.[dev]' setuptools
	.venv-lock/bin/python -m pip install --quiet --no-deps 'mediapipe==0.10.21'
	{ echo '# Exact versions, as pip constraints: pip install --constraint requirements.lock ...; made by "make lock".'; \
	  .venv-lock/bin/python -m pip freeze --all --exclude-editable --exclude pip | sed 's/+[a-z0-9.]*$$//'; } > requirements.lock
	rm -rf .venv-lock

clean:
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache
