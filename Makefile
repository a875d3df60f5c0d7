# Every target installs what it needs: Python >= 3.11 and make are enough.
#   PYTHON=...   interpreter for .venv          ARGS=...   arguments of the command, mostly pytest
#   PORT=...     port of the demonstration site; BROKER=rabbitmq or redis gives it an outbox
#   SEED, SECONDS, DATABASE, BROKER          chaos: the plan of faults, its duration, database, broker
#   EXAMPLES, STEPS, SEEDS, RATE, MESSAGES   size of the long runs

VENV := .venv
BIN := $(VENV)/bin
SITE := $(VENV)/.site-installed
INSTALLED := $(VENV)/.installed
BENCH := .bench-venv
PORT ?= 8000
DATABASE := postgresql
ARGS ?=
EXAMPLES ?= 5000
STEPS ?= 50
SEEDS ?= 5000
RATE ?= 50
MESSAGES ?= 1000000
CANDIDATES := $(strip $(PYTHON) python3 python3.13 python3.12 python3.11)
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help demo test test-fast test-more chaos check matrix bench bench-admin conformance mutants machine interleavings soak backlog clean

help: ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | while IFS="$$(printf '\t')" read -r name text; \
	do printf '  make %-13s %s\n' "$$name" "$$text"; done

demo: $(SITE) ## Run the site with a worker and sample messages, until Ctrl-C (PORT=8000, BROKER=rabbitmq or redis)
	@DATABASE_URL="$${DEMO_DATABASE_URL:-sqlite:///demo.sqlite3}" exec $(BIN)/python \
	  $(if $(BROKER),-m project.brokers $(BROKER)) manage.py demo --port $(PORT)

test: $(INSTALLED) ## Run the tests on SQLite and on PostgreSQL 18, the plans also on 16 (ARGS="-k name")
	@exec $(BIN)/python -m tests.both_databases $(ARGS)

test-fast: $(INSTALLED) ## Run what needs no processes and little time, on both databases (ARGS="-k name")
	@exec $(BIN)/python -m tests.both_databases --fast $(ARGS)

test-more: $(INSTALLED) ## Run parts of the tests on other servers and pairs (ARGS="--list", ARGS="postgresql-15-plans")
	@exec $(BIN)/python -m tests.more $(ARGS)

# Set per target, not from the environment: SECONDS is a counter in some shells.
chaos: SECONDS := 60
chaos: $(INSTALLED) ## Inject faults, then check that nothing was lost (SEED=1 SECONDS=60 DATABASE=sqlite BROKER=redis)
	@exec $(BIN)/python -m tests.chaos --seconds $(SECONDS) --database $(DATABASE) $(if $(SEED),--seed $(SEED)) $(if $(BROKER),--broker $(BROKER))

check: $(INSTALLED) ## Lint, format, types, import directions, migrations, system checks, advisories
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python manage.py makemigrations --check --dry-run
	$(BIN)/python manage.py check --fail-level WARNING
	HTTPS=1 $(BIN)/python manage.py check --deploy --fail-level WARNING
	@.ci/audit $(BIN)

conformance: $(INSTALLED) ## Run the tests of Django Tasks against our backend, on both databases (ARGS="django-6.1")
	@exec $(BIN)/python -m tests.conformance $(ARGS)

matrix: ## Run the tests on each supported pair of Python and Django
	@exec .ci/matrix $(ARGS)

bench: $(BENCH)/.installed ## Measure deadletter, other queues and the limit of the database (ARGS="--quick")
	@exec $(BENCH)/bin/python -m benchmarks $(ARGS)

bench-admin: $(INSTALLED) ## Measure the pages of the admin beside a million poison records
	@exec $(BIN)/python -m benchmarks.admin $(ARGS)

mutants: $(INSTALLED) ## Break each rule in a copy of the source; a test must fail for each (ARGS="release")
	@exec $(BIN)/python -m tests.mutants $(ARGS)

machine: $(INSTALLED) ## Run random histories against the model, on both databases (EXAMPLES=5000 STEPS=50)
	@MACHINE_EXAMPLES=$(EXAMPLES) MACHINE_STEPS=$(STEPS) exec $(BIN)/python -m tests.both_databases \
	  --hypothesis-show-statistics tests/machine/test_machine.py $(ARGS)

interleavings: $(INSTALLED) ## Run seeded schedules of workers, one statement at a time (SEEDS=5000)
	@INTERLEAVINGS=$(SEEDS) exec $(BIN)/python -m tests.both_databases tests/races/test_interleavings.py $(ARGS)

soak: SECONDS := 3600
soak: $(INSTALLED) ## Measure memory and connections of two workers for an hour (SECONDS=3600 RATE=50)
	@exec $(BIN)/python -m tests.endurance.soak --seconds $(SECONDS) --rate $(RATE) $(ARGS)

backlog: $(INSTALLED) ## Drain a million messages and account for each (MESSAGES=1000000)
	@exec $(BIN)/python -m tests.endurance.backlog --messages $(MESSAGES) $(ARGS)

clean: ## Remove environments, databases, caches
	rm -rf $(VENV) $(BENCH) .conformance .matrix .wagtail .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
	rm -f db.sqlite3* demo.sqlite3* demo.log
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@for python in $(CANDIDATES); do \
	  if $$python -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	    echo "Making $(VENV) with $$($$python -V) ..."; \
	    exec $$python -m venv $(VENV); \
	  fi; \
	done; \
	echo "deadletter needs Python 3.11 or newer with its venv module; tried: $(CANDIDATES)." >&2; \
	echo "Install one, or name it: make PYTHON=/path/to/python3" >&2; exit 1

# Newer Python versions first: one of the peers needs 3.12.
$(BENCH)/bin/python:
	@for python in $(PYTHON) python3.13 python3.12 $(CANDIDATES); do \
	  if $$python -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	    echo "Making $(BENCH) with $$($$python -V) ..."; \
	    exec $$python -m venv $(BENCH); \
	  fi; \
	done; \
	echo "make bench needs Python 3.11 or newer with its venv module." >&2; exit 1

$(BENCH)/.installed: benchmarks/requirements.txt benchmarks/peers/graphile/package.json | $(BENCH)/bin/python
	@echo "Installing the measured queues into $(BENCH) ..."
	@$(BENCH)/bin/python -m pip install --quiet --requirement benchmarks/requirements.txt
	@if command -v npm >/dev/null; then \
	  cp benchmarks/peers/graphile/package.json $(BENCH)/ && npm install --silent --prefix $(BENCH); \
	else echo "npm is not installed: graphile-worker will not be measured"; fi
	@touch $@

$(SITE): requirements.txt | $(BIN)/python
	@echo "Installing the site into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --requirement requirements.txt
	@touch $@

$(INSTALLED): requirements-dev.txt requirements.txt pyproject.toml | $(BIN)/python
	@echo "Installing the site and the development tools into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --requirement requirements-dev.txt
	@touch $@
