# The same targets serve a person and CI. Needs make and Python 3.11 or later; everything else goes into .venv.

PYTHON ?= python3
NODES ?= 20
GPUS ?= 8
FORM ?= own-scheduler
KUBERNETES ?= 1.36
OTHER_VERSIONS ?= 1.37
OLDER_VERSIONS ?= 1.34 1.35
WORKERS ?= 2
PYTEST_ARGS ?=
BENCH_ARGS ?=
ENGINE ?= docker
IMAGE ?= leeboard:0.1.0

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
INSTALLED_LOAD := $(VENV)/.installed-load
PYTHON_FILES := app tests loadtest
TEST_FOLDERS = $(filter-out tests/system tests/__pycache__,$(patsubst %/,%,$(wildcard tests/*/)))
FAST_TESTS = $(sort $(TEST_FOLDERS) $(wildcard tests/test_*.py))
# All that depends on admission policies, their CEL or the match conditions of webhooks, and one of each other kind.
VERSION_TESTS = $(patsubst %,tests/system/test_%.py,bed dra_bed crds policies admission_webhooks attacks attacks_by_owners \
	attacks_past_admission reservation_rules gpu_runtime gpunodes held_pods queues_and_gangs planner_actions \
	disruption_budgets claims mixed_load gpu_sharing why why_elsewhere workloads lifecycle native_groups)

# There pods are held by our webhook alone.
OLDER_TESTS = $(patsubst %,tests/system/test_%.py,bed dra_bed crds queues_and_gangs held_pods planner_actions claims \
	mixed_load playground)

# A file of tests/system is a group, whose tests stay in one process. They come first: the
# last of these files would leave the other process idle.
IN_PARALLEL = --numprocesses=$(WORKERS) --dist=loadgroup --no-loadscope-reorder --durations=10

.DEFAULT_GOAL := help
.PHONY: help run test unit test-versions cluster check house fmt bench bench-placement bench-scale bench-webhooks bench-hostile bench-cluster bench-philly simulate manifests vendor image plugin lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: $(INSTALLED) ## run the service on a simulated cluster, with traffic; no Kubernetes needed
	@exec $(BIN)/leeboard demo

test: check ## check, then run every test in two processes, each with a control plane of its own (WORKERS=2)
	$(BIN)/python -m pytest $(IN_PARALLEL) tests/system $(FAST_TESTS) $(PYTEST_ARGS)

unit: $(INSTALLED) ## the tests of rules, in two processes; those marked `slow` are left to `make test`
	$(BIN)/python -m pytest --numprocesses=$(WORKERS) --durations=10 -m "not slow" $(FAST_TESTS) $(PYTEST_ARGS)

simulate: SEEDS = 1000
simulate: $(INSTALLED) ## run the components in a simulated cluster under seeded faults (SEEDS=1000 FIRST=0, or one: SEED=n)
	$(BIN)/python -m tests.faults $(if $(SEED),--seed $(SEED) --shrink,--seeds $(SEEDS) --first $(or $(FIRST),0) --workers $(WORKERS) --go-on)

test-versions: $(INSTALLED) ## the tests of admission, gangs, actions and GPU sharing on other versions of Kubernetes
	for version in $(OTHER_VERSIONS); do \
		LEEBOARD_KUBERNETES=$$version $(BIN)/python -m pytest $(IN_PARALLEL) $(VERSION_TESTS) $(PYTEST_ARGS) || exit; \
	done
	for version in $(OLDER_VERSIONS); do \
		LEEBOARD_KUBERNETES=$$version $(BIN)/python -m pytest $(IN_PARALLEL) $(OLDER_TESTS) $(PYTEST_ARGS) || exit; \
	done

cluster: $(INSTALLED) ## real API server and kube-scheduler with Leeboard beside it (NODES=20 GPUS=8 FORM=own-scheduler KUBERNETES=1.36)
	@exec env LEEBOARD_KUBERNETES=$(KUBERNETES) $(BIN)/python -m tests.system.playground --nodes $(NODES) --gpus $(GPUS) --form $(FORM)

check: $(INSTALLED) ## check format, lint, types, the Dockerfile, and which module may import which
	$(BIN)/ruff format --check $(wildcard $(PYTHON_FILES))
	$(BIN)/ruff check $(wildcard $(PYTHON_FILES))
	$(BIN)/mypy
	$(BIN)/hadolint Dockerfile
	$(BIN)/lint-imports

house: $(INSTALLED) ## how large the code is, and which modules one lone pod enters
	$(BIN)/python -m tests.house

fmt: $(INSTALLED) ## format the code, and fix what ruff can fix
	$(BIN)/ruff format $(wildcard $(PYTHON_FILES))
	$(BIN)/ruff check --fix $(wildcard $(PYTHON_FILES))

bench: $(INSTALLED) ## time the planner on large clusters and print each plan beside its budget
	$(BIN)/python -m loadtest.budgets
	$(BIN)/python -m loadtest.saturated --seeds 1

bench-placement: NODES = tests/loadtest/data/openb_node_list_sample.csv
bench-placement: PODS = tests/loadtest/data/openb_pod_list_sample.csv
bench-placement: SEEDS = 42 43 44 45 46 47 48 49 50 51
bench-placement: $(INSTALLED) ## how many GPUs placement leaves idle, beside published policies (NODES=FILE PODS="FILE ..." SEEDS="42 43")
	$(BIN)/python -m loadtest.placement --nodes $(NODES) --pods $(PODS) --seeds $(SEEDS) $(BENCH_ARGS)

bench-scale: $(INSTALLED) ## cache, planner and webhooks as a simulated cluster grows to 15,000 nodes and 100,000 pods
	$(BIN)/python -m loadtest.scale

bench-webhooks: $(INSTALLED_LOAD) ## filter, prioritize, bind and preempt under locust, each latency beside its budget
	$(BIN)/python -m loadtest.webhooks

bench-hostile: $(INSTALLED) ## health probes, filter and the event loop beside hostile clients of every port
	$(BIN)/python -m loadtest.hostile

bench-cluster: $(INSTALLED_LOAD) ## the same work through kube-scheduler, Leeboard, KAI, coscheduling and Volcano (BENCH_ARGS=--quick)
	$(BIN)/python -m loadtest $(BENCH_ARGS)

bench-philly: $(INSTALLED) ## a week of jobs on 512 to 1,024 GPUs: waits, use and fairness beside FIFO and SJF (JOBS=FILE)
	$(BIN)/python -m loadtest.philly --jobs "$(or $(JOBS),$(error name the file of jobs: make bench-philly JOBS=FILE))" $(BENCH_ARGS)

manifests: $(INSTALLED) ## write what follows from the chart: deploy/kustomize and scheduler-config
	$(BIN)/python -m tests.deploy.rendering

vendor: $(INSTALLED) ## take the page's libraries from the npm registry again (needs npm); tests compare their hashes
	$(BIN)/python -m tests.page.vendoring

image: ## build the image (ENGINE=podman IMAGE=registry.example.com/leeboard:0.1.0)
	$(ENGINE) build --tag $(IMAGE) --build-arg GIT_COMMIT=$(shell git describe --always --abbrev=40 --dirty --exclude='*' 2>/dev/null) .

plugin: ## build the kubectl plugin for this platform, with an interpreter, and krew's manifest for it, in build/
	$(PYTHON) -m venv build/plugin
	build/plugin/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r deploy/krew/requirements.lock
	build/plugin/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation .
	build/plugin/bin/python -m tests.deploy.plugin_archive

lock: ## resolve the dependencies of pyproject.toml again
	$(PYTHON) -m venv $(VENV)/locking
	$(VENV)/locking/bin/python -m pip install --quiet uv
	PIP_FIND_LINKS= UV_FIND_LINKS= $(VENV)/locking/bin/uv pip compile pyproject.toml --extra server --group dev --universal \
		--python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links --upgrade \
		--custom-compile-command "make lock" --output-file requirements.lock --quiet
	PIP_FIND_LINKS= UV_FIND_LINKS= $(VENV)/locking/bin/uv pip compile --group load --constraint requirements.lock \
		--universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links --upgrade \
		--custom-compile-command "make lock" --output-file loadtest/requirements.lock --quiet
	PIP_FIND_LINKS= UV_FIND_LINKS= $(VENV)/locking/bin/uv pip compile pyproject.toml --group plugin --constraint requirements.lock \
		--universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links --upgrade \
		--custom-compile-command "make lock" --output-file deploy/krew/requirements.lock --quiet
	rm -rf $(VENV)/locking

clean: ## remove everything that the targets above have made
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist

$(INSTALLED): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Leeboard needs Python 3.11 or later; name one with: make PYTHON=python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
		{ echo "This Python lacks venv or ensurepip; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

# Only load tests need these, so the other targets do not wait for them.
$(INSTALLED_LOAD): $(INSTALLED) loadtest/requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r loadtest/requirements.lock
	@touch $@
