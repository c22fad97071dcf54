# Every target sets up what it needs first (tools/setup), which takes no time once that is done.
VENV ?= .venv
PYTHON ?=
ARGS ?=
export VENV PYTHON
BIN = $(VENV)/bin
STYLE = $(addprefix tests/repository/test_,tidy.py imports.py rooms.py protocol_rules.py links.py pages.py)

.DEFAULT_GOAL := help
.PHONY: help setup ready examples native compare bench quick test check lint types style collection docs documents clean

help: ## print this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):[^#]*## /\1\t/' | awk -F'\t' '{printf "  make %-9s %s\n", $$1, $$2}'

setup: ## Debian packages (as root), .venv, Mininet linked into it, the compiled core; retries what failed before
	@tools/setup --again

ready:
	@tools/setup

examples: ready ## what the examples with Lightning, Transformers and Accelerate need, torchft and pyarrow, into .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check 'switchagg[examples,parquet,torchft]'

native: ready ## build the compiled core and the XDP programs again, and say what was built
	@$(BIN)/python setup.py --quiet build_ext --inplace

compare: ready ## real training through the switch and over host allreduce: a table and report.html in results/quickstart
	@$(BIN)/switchagg compare emulation/scenarios/quickstart.toml --out results/quickstart $(ARGS)

bench: ready ## planes, numbers and allreduce beside Gloo and a TCP ring: results/bench, half an hour; ARGS=--quick: some parts, two minutes
	@$(BIN)/python -m tools.bench suite --out results/bench $(ARGS)

# Left out: what needs the kernel, compiles P4 programs or builds the package anew.
quick: ready ## what to run before a commit: the rules, codecs, data planes and schedules, with two seeds: a minute and a half
	@$(BIN)/python -m pytest -q --numprocesses=auto --maxprocesses=4 --seeds=2 $(addprefix --ignore=tests/,conformance/test_xdp.py conformance/test_p4_planes.py $(addprefix switchagg/,test_adding_an_option.py $(addprefix dataplane/test_,finish_early.py generate.py programs.py))) tests/switchagg tests/conformance tests/transport/schedule tests/transport/bounded tests/vectors $(ARGS)

test: ready ## the tests, in up to four processes; ARGS="tests/switchagg/test_wire.py -k golden" chooses some, on one
	@$(BIN)/python -m pytest $(or $(ARGS),--numprocesses=auto --maxprocesses=4 --durations=20)

check: lint types style ## formatting, lint, types, tidiness, links

lint: ready
	@$(BIN)/ruff format --check --quiet . || { echo "check: run $(BIN)/ruff format ." >&2; exit 1; }
	@$(BIN)/ruff check --quiet .

types: ready
	@$(BIN)/mypy
	@$(BIN)/mypy setup.py

style: ready
	@$(BIN)/python -m pytest -q $(STYLE)

collection: ready # else all processes of a first run compile the tests, each for itself
	@$(BIN)/python -m pytest --collect-only --quiet --quiet >/dev/null

docs: ready ## guides and API reference as a site in build/site; a broken link is an error
	@mkdir -p build/pages
	@$(BIN)/sphinx-build -q -E -W --keep-going -c docs -d build/doctrees build/pages build/site
	@echo build/site/index.html

documents: ready ## the commands of all documents as pasted, outputs compared; ARGS=--long: also what takes minutes
	@$(BIN)/python tools/documents $(ARGS)

clean: ## remove the environment, caches and results
	rm -rf -- .venv results build dist .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info switchagg/native/*.so switchagg/native/*.bpf.o
	find . -name __pycache__ -type d -prune -exec rm -rf -- {} +
