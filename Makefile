# Two commands on a fresh machine: `make inspect` and `make test`. Each sets up all it needs.
PYTHON ?= python3
BIN := .venv/bin
bounds newest: BIN = build/$@/bin
bounds: RESOLUTION := lowest-direct
newest: RESOLUTION := highest
# The first look takes a minute and a half of CPU time; FULL=1 trains the experts in full, in minutes.
FULL ?=
BOARD := $(if $(FULL),demo,first_look)
IMAGES := build/$(if $(FULL),demo,first-look)/images
MEMORY := $(if $(FULL),150MB,25MB)
RUN := runs/$(BOARD)/latest
JOBS ?= 2
# Compiled modules are kept, also where the environment says otherwise: each test process would compile all of them.
export PYTHONDONTWRITEBYTECODE :=
# The files of serial tests: the second pass imports no others.
SERIAL := $(shell grep -rlF mark.serial tests --include='test_*.py')

.PHONY: inspect serve test test-all stress coverage check first-look demo setup lock bounds newest clean help

help: ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

inspect: $(if $(FULL),demo,first-look) ## make a first look (FULL=1: the demo) if it is not there, inspect it, say where the report lies
	@rm -rf $(RUN)
	@status=0; $(if $(FULL),,OMP_NUM_THREADS=1) $(BIN)/coe-inspect --board $(BOARD) $(if $(FULL),,--allow-kind apps.demo) --images $(IMAGES) --memory $(MEMORY) \
	    --out $(RUN) || status=$$?; \
	if [ $$status -le 1 ]; then \
	    $(BIN)/python -m apps.demo.verdicts $(RUN) --images $(IMAGES); \
	    echo "report: $(CURDIR)/$(RUN)/report.html (status $$status: 0 all OK, 1 something is NG or to REVIEW)"; \
	    $(if $(FULL),:,echo "a first look: small experts, and none for solder joints; make inspect FULL=1 trains those of the demo board"); \
	fi; \
	[ $$status -le 1 ]

test: setup ## lint, types and all tests that are not marked slow, gpu or stress (JOBS=2 files at a time)
	$(call passes,not slow and not gpu and not stress,check)

test-all: setup ## the same with the slow tests, and with the clients of brokers and browsers, and Ray, that they need
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --requirement requirements.real.lock
	$(call passes,not gpu and not stress,check)

# Tests in two passes: files of tests side by side, with lint and types beside them, then those marked serial, one after
# another. All run, whatever the others said. A pass that selects no test says so (pytest's status 5): no failure.
define passes
	@failed=0; trap 'exit 130' INT; mkdir -p build; \
	$(if $(2),$(MAKE) --no-print-directory $(2),:) > build/check.txt 2>&1 & check=$$!; \
	run() { \
	    echo "== $$1"; shift; status=0; \
	    OMP_NUM_THREADS=1 $(BIN)/python -m pytest "$$@" || status=$$?; \
	    case $$status in 0) ;; 5) echo "== no test is in this pass";; *) failed=$$status;; esac; \
	}; \
	run "$(JOBS) files of tests side by side" -n $(JOBS) --dist loadfile --no-loadscope-reorder --durations=10 \
	    -m "not serial and $(1)"; \
	wait $$check || failed=$$?; cat build/check.txt; \
	run "tests that must be alone (marked serial)" $(SERIAL) -m "serial and $(1)"; \
	[ $$failed -eq 0 ] || echo "failed: see the summaries above (status $$failed)"; \
	exit $$failed
endef

coverage: setup ## how much of decisions, rules, pictures and store the tests run, by branch: at least 95 % of each
	@rm -f .coverage .coverage.*
	OMP_NUM_THREADS=1 $(BIN)/coverage run -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder -o timeout=600 \
	    -m "not serial and not slow and not gpu and not stress"
	@$(BIN)/coverage combine --quiet
	@failed=0; \
	for part in scheduler board pictures comparing store; do \
	    $(BIN)/coverage report --include="coe/$$part/*" --fail-under=95 || failed=1; \
	done; \
	exit $$failed

stress: setup ## property tests with random seeds; then threads, kills and floods (SEED=n repeats a run)
	@seed=$${SEED:-$$($(BIN)/python -c 'import secrets; print(secrets.randbelow(10**9))')}; \
	echo "seed: $$seed (again: make stress SEED=$$seed)"; export COE_STRESS_SEED=$$seed OMP_WAIT_POLICY=PASSIVE; \
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile -m "hypothesis and not gpu" -o timeout=1800 --hypothesis-seed=$$seed && \
	$(BIN)/python -m pytest -m stress -o timeout=1800 \
	    || { echo "failed with seed $$seed (again: make stress SEED=$$seed)"; exit 1; }

check: setup ## lint, layers and types alone
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache --no-logo
	$(BIN)/mypy

serve: first-look ## run the demo line as a service with boards that arrive by themselves, and say which page to open
	@OMP_NUM_THREADS=1 $(BIN)/python -m apps.serve_demo.line

first-look: setup
	@OMP_NUM_THREADS=1 $(BIN)/python -m apps.demo.first_look --images build/first-look/images --store store

demo: setup ## render and train the demo board (cached)
	@$(BIN)/python -m apps.demo.build --images build/demo/images --store store

setup: .venv/.ready

.venv/.ready: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' || \
	    { echo "CoE needs Python 3.11 to 3.14; name one with: make PYTHON=python3.12"; exit 2; }
	@$(PYTHON) -m venv .venv || { echo "on Debian: apt-get install python3-venv, then try again"; exit 2; }
	@echo "installing the pinned packages (about 6 GB, a few minutes)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --requirement requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@$(BIN)/python -c 'import cv2' 2>/dev/null || { [ "$$(id -u)" = 0 ] && apt-get update -qq && \
	    apt-get install -qq -y libgl1 libglib2.0-0 >/dev/null && $(BIN)/python -c 'import cv2'; } || \
	    { echo "OpenCV lacks system libraries; on Debian: apt-get install libgl1 libglib2.0-0, then try again"; exit 2; }
	@touch $@

lock: ## write the versions that are installed into requirements.lock; those in requirements.real.lock stay there
	@{ head -1 requirements.lock; $(BIN)/python -m pip freeze --all --exclude pip --exclude-editable | \
	    grep -viE "^($$(sed -n 's/==.*//p' requirements.real.lock | paste -sd '|'))=="; } > requirements.lock.new
	@mv requirements.lock.new requirements.lock

bounds: ## the tests of `make test` with the lowest versions that pyproject.toml allows (PYTHON=python3.11)
newest: ## the tests of `make test` with the newest versions that there are (PYTHON=python3.14)
bounds newest:
	@$(PYTHON) -m venv build/$@
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --resolution $(RESOLUTION) --requirements pyproject.toml --extra dev \
	    "$$(sed -n 's/^requires = \["\(.*\)"\]/\1/p' pyproject.toml)"
	@$(BIN)/python -m pip install --quiet --no-deps "$$(grep ^rapidocr= requirements.lock)"
	@$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	$(call passes,not slow and not gpu and not stress)

clean: ## remove what was built; .venv stays
	rm -rf build runs store *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage .coverage.*
