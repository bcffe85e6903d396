# Every target installs what it needs into .venv on first use; nothing but Python 3.11+ is assumed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# `make test` takes eight minutes or so on two cores, `make test-long` three and a half with PyTorch.
TEST_WORKERS ?= 2

# Tests start hundreds of Python processes: each would compile every module again if the environment forbade keeping them.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo demo-slurm demo-ray demo-kubernetes test test-long test-slurm test-ray test-kubernetes torch slurm sandbox ray kubernetes soak lint bench agreement agreement-slurm docs clean
.DEFAULT_GOAL := test

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Horae needs Python 3.11 or newer; name one with: make PYTHON=/path/to/python3" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@# Compile the hot loops now, so that no later run has to.
	$(BIN)/horae compare --generate plain --cluster 2x4 --jobs 5 --policies fifo,srtf,themis,max-min --workers 1 -o json >/dev/null
	@touch $@

## A service on loopback trains a dozen small models of three teams; a page on how fair it was in build/demo.html.
demo: $(INSTALLED)
	@mkdir -p build
	$(BIN)/horae demo --html build/demo.html

## The same on a small real Slurm of four nodes with made-up GPUs, which is ended afterwards.
demo-slurm: slurm
	@mkdir -p build
	$(BIN)/horae demo --on slurm --html build/demo-slurm.html

## The same on a small real Ray of four nodes with made-up GPUs, as root, which is ended afterwards.
demo-ray: ray
	@mkdir -p build
	$(BIN)/horae demo --on ray --html build/demo-ray.html

## The same on a small real Kubernetes, whose kubelets are ours: pods are processes. It is built on first use, in minutes.
demo-kubernetes: kubernetes
	@mkdir -p build
	$(BIN)/horae demo --on kubernetes --html build/demo-kubernetes.html

## The test suite; what could not run is listed with its reason. Then, alone, the gate: Horae is as fast as it was.
test: $(INSTALLED)
	$(BIN)/pytest -n $(TEST_WORKERS) --dist worksteal -m "not long" --ignore=tests/gate
	$(BIN)/pytest -p no:xdist tests/gate

## What takes long: a service that is killed again and again, the demo, real jobs against simulated ones, PyTorch.
test-long: $(INSTALLED)
	$(BIN)/pytest -n $(TEST_WORKERS) --dist worksteal -m "long and not engine"

## PyTorch, for the tests that train with it; `make test-long` runs them where it is installed.
torch: $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch

## The tests that need a real Slurm, with a storm of some ten minutes; `make test` runs the short ones, where Slurm is installed.
test-slurm: $(INSTALLED)
	$(BIN)/pytest -n $(TEST_WORKERS) --dist worksteal -m engine tests/backends/slurm tests/testing/test_slurm_cluster.py tests/service/test_serve_slurm.py -k "not storm"
	HORAE_STORM=1 $(BIN)/pytest -p no:xdist tests/backends/slurm/test_storm.py

## Slurm from the packages of Debian or Ubuntu, as root, for those tests. They start daemons of their own.
slurm: $(INSTALLED)
	@$(BIN)/python -c 'import sys; from horae.testing.slurm_cluster import why_not; sys.exit(bool(why_not()))' || \
		{ apt-get update --quiet=2 && DEBIAN_FRONTEND=noninteractive \
		$$($(BIN)/python -c 'from horae.testing.slurm_cluster import INSTALL; print(INSTALL)'); }

## The tests that need a real Ray, as root: about twenty minutes, with a storm of kills in the end.
test-ray: $(INSTALLED) ray
	$(BIN)/pytest -p no:xdist -m engine tests/backends/ray tests/testing/test_ray_cluster.py tests/service/test_serve_ray.py \
		tests/experiments/test_ray_study.py --deselect tests/backends/ray/test_ray_storm.py
	HORAE_STORM=1 $(BIN)/pytest -p no:xdist tests/backends/ray/test_ray_storm.py

## bubblewrap from the packages of Debian or Ubuntu, as root, for the tests of `--isolation sandbox`.
sandbox:
	@command -v bwrap >/dev/null || { apt-get update --quiet=2 && DEBIAN_FRONTEND=noninteractive apt-get install --quiet=2 --yes bubblewrap; }

## Ray, 400 MB, in an environment of its own in the user's cache folder; only these tests and demonstrations use it.
ray: $(INSTALLED)
	$(BIN)/python -m horae.testing.ray_cluster install

## The tests that need a real Kubernetes, the long ones included; `make kubernetes` builds it. Kubelets are ours.
test-kubernetes: $(INSTALLED)
	HORAE_KUBERNETES=1 $(BIN)/pytest -n $(TEST_WORKERS) --dist loadfile -m engine tests/backends/kubernetes \
		tests/service/test_serve_kubernetes.py tests/testing/test_kubernetes_cluster.py --deselect tests/backends/kubernetes/test_storm.py
	HORAE_KUBERNETES=1 HORAE_STORM=1 $(BIN)/pytest -p no:xdist tests/backends/kubernetes/test_storm.py

## Kubernetes' API server, built from Debian's source package into the user's cache folder, as root, for those tests; minutes.
kubernetes: $(INSTALLED)
	@$(BIN)/python -c 'import sys; from horae.testing.kubernetes_cluster import why_not; sys.exit(bool(why_not()))' || \
		{ apt-get update --quiet=2 && DEBIAN_FRONTEND=noninteractive \
		$$($(BIN)/python -c 'from horae.testing.kubernetes_build import INSTALL; print(INSTALL)') && \
		$(BIN)/python -m horae.testing.kubernetes_cluster build; }

## 10,000 seeded worlds of the daemon, 2,000 seeds of random workloads with every fault, new cases for all property tests, 100 kills of a real service, and 20 of one with a standby; `make test` and `make test-long` run a slice of it.
WORLDS ?= 10000
soak: $(INSTALLED)
	HORAE_NEW_CASES=1 $(BIN)/pytest -n $(TEST_WORKERS) -q -m "not long" $$(grep -rl "^from hypothesis" tests)
	$(BIN)/python -m tests.world.soak $(WORLDS)
	HORAE_SEEDS=2000 $(BIN)/pytest -n $(TEST_WORKERS) -q tests/simulation
	HORAE_KILLS=100 $(BIN)/pytest -q tests/service/test_crashes.py
	HORAE_DAMAGES=5000 $(BIN)/pytest -q -m long tests/service/test_damage.py
	HORAE_TAKE_OVERS=20 $(BIN)/pytest -q -s tests/service/test_standby.py -k replaced

## Style, format and types; and that horae-train and the runner stay within Python 3.9. mypy knows methods that vermin does not, from 3.10 on.
lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --python-version 3.10 packages/horae-train/src src/horae/backends/local/runner.py
	$(BIN)/vermin --quiet --no-tips --violations --target=3.9- packages/horae-train/src src/horae/backends/local/runner.py

## Speed and memory of what is committed, into benchmarks/results.json; about half an hour. Then `make docs`.
bench: $(INSTALLED)
	$(BIN)/python -m benchmarks --write

## Five minutes: a live run of 34 jobs beside its simulation.
agreement: $(INSTALLED)
	$(BIN)/python -m benchmarks --only agreement

## The same on a small real Slurm, twelve minutes for each POLICY; tables in build/agreement-slurm-POLICY.md.
POLICY ?= themis max-min tiresias
agreement-slurm: slurm
	$(BIN)/python -m benchmarks.agreement_slurm $(POLICY)

## Regenerate docs/reference/cli.md and docs/benchmarks.md, check every link, and write HTML to build/docs.
docs: $(INSTALLED)
	$(BIN)/python -m benchmarks.page
	$(BIN)/python docs/build.py

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
