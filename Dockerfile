# The worker on a machine with a GPU: the official image of vLLM, the SDK, and src/. The settings are
# environment variables of the endpoint; only MODEL_NAME is required. As a build argument, it puts that
# model into the image.

# The version includes the CUDA version if that is not the default one: 0.32.0-cu129.
ARG VLLM_VERSION=0.32.0
ARG BASE_IMAGE=docker.io/vllm/vllm-openai:v${VLLM_VERSION}
FROM ${BASE_IMAGE}

# This argument selected the image of earlier workers. It would have no effect here, so it is refused.
ARG WORKER_CUDA_VERSION
RUN test -z "${WORKER_CUDA_VERSION}" || { \
    echo "WORKER_CUDA_VERSION=${WORKER_CUDA_VERSION} has no effect: the image of vLLM contains" \
        "its CUDA. Leave it unset, and select the image with VLLM_VERSION: 0.32.0 has CUDA 13.0," \
        "0.32.0-cu129 has 12.9" >&2; \
    exit 1; \
    }

# For the processes that vLLM starts; the worker's own Python has -u below. The worker itself sets the
# variables that the SDK needs (LIBRARY_DEFAULTS in src/worker/settings/environment.py), so that it runs
# in the same way outside this image.
ENV PYTHONUNBUFFERED=1

COPY builder/requirements.lock /tmp/requirements.lock
# If a package that the SDK needs is missing, this import fails the build instead of the first start.
RUN command -v python || ln -s "$(command -v python3)" /usr/local/bin/python; \
    python -m pip install --no-deps --require-hashes --no-cache-dir -r /tmp/requirements.lock \
    && python -c "import runpod.serverless"

# Without bytecode, each starting container compiles the packages, for ten seconds or more. uv, which has
# installed the packages of vLLM's image, doesn't compile them. Some packages contain templates that are
# not valid Python.
RUN python -m compileall -q -j 0 "$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" || true

# The layer of the model, if there is one, is below the source, so that a change of the source does not
# repeat the download. Only the code that downloads is copied before it.
COPY src/worker/__init__.py src/worker/errors.py src/worker/masking.py /src/worker/
COPY src/worker/store/ /src/worker/store/
COPY src/worker/volume/ /src/worker/volume/
COPY builder/bake_model.py /tmp/bake_model.py
ARG MODEL_NAME
ARG MODEL_REVISION
ARG TOKENIZER_NAME
ARG TOKENIZER_REVISION
ARG QUANTIZATION
# Not the mount point of network volumes: a mounted volume would hide the model.
ARG BASE_PATH=/models
# Another hub to use during the build instead of Hugging Face's.
ARG HF_ENDPOINT
# The token exists only in this step, in no layer and not in the history.
RUN --mount=type=secret,id=HF_TOKEN \
    test -z "${MODEL_NAME}" || { \
    export PYTHONPATH=/src PYTHONDONTWRITEBYTECODE=1 \
        HF_HOME=/tmp/huggingface HF_TOKEN_PATH=/run/secrets/HF_TOKEN \
    && python -u /tmp/bake_model.py --base-path "${BASE_PATH}" \
        --model "${MODEL_NAME}" --revision "${MODEL_REVISION}" \
        --tokenizer "${TOKENIZER_NAME}" --tokenizer-revision "${TOKENIZER_REVISION}" \
        --quantization "${QUANTIZATION}" \
    && rm -rf "${HF_HOME}"; \
    }

COPY src/ /src/
RUN python -m compileall -q /src

# The results of a measurement in the image (python -m proof.machine) name the commit.
ARG WORKER_COMMIT=unknown
RUN echo "${WORKER_COMMIT}" >/src/commit

# make image TAG=... sets the version of a release.
LABEL org.opencontainers.image.title="vLLM worker for RunPod Serverless" \
    org.opencontainers.image.description="Takes jobs from RunPod's queue and answers them with vLLM" \
    org.opencontainers.image.licenses="MIT" \
    org.opencontainers.image.version="dev"

# vLLM's image has its own entry point, which this removes.
WORKDIR /
ENTRYPOINT []
CMD ["python", "-u", "src/handler.py"]
