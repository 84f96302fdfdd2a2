# The worker on a machine with a GPU: the official image of vLLM, the SDK, and src/. The settings come
# as environment variables of the endpoint; MODEL_NAME is the one it needs. Given as an argument of
# the build, it puts that model inside the image.

# The version also names the CUDA, if it is not the usual one: 0.32.0-cu129.
ARG VLLM_VERSION=0.32.0
ARG BASE_IMAGE=vllm/vllm-openai:v${VLLM_VERSION}
FROM ${BASE_IMAGE}

# It chose the image of earlier workers. It has no effect here, so it is refused.
ARG WORKER_CUDA_VERSION
RUN test -z "${WORKER_CUDA_VERSION}" || { \
    echo "WORKER_CUDA_VERSION=${WORKER_CUDA_VERSION} chooses nothing: the image of vLLM brings" \
        "its CUDA. Leave it unset, and choose that image by VLLM_VERSION: 0.32.0 has CUDA 13.0," \
        "0.32.0-cu129 has 12.9" >&2; \
    exit 1; \
    }

# For the processes that vLLM starts; the worker's own Python has -u below. What the SDK must find
# in the environment, the worker sets itself (EXPORTS in src/worker/settings/environment.py), so that
# it runs in the same way outside this image.
ENV PYTHONUNBUFFERED=1

COPY builder/requirements.txt /tmp/requirements.txt
# The import fails the build, not the first start, if a package that the SDK needs is missing.
RUN command -v python || ln -s "$(command -v python3)" /usr/local/bin/python; \
    python -m pip install --no-deps --no-cache-dir -r /tmp/requirements.txt \
    && python -c "import runpod"

# A package without bytecode is compiled by every container that starts, for ten seconds or more: uv, which
# has installed the packages of vLLM's image, leaves them so. Some hold templates, which are no valid
# Python.
RUN python -m compileall -q -j 0 "$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" || true

# The model, if one is given, is in a layer below the source, so that a change of the source downloads
# nothing again: only the code that downloads is copied before it.
COPY src/worker/__init__.py src/worker/errors.py src/worker/masking.py /src/worker/
COPY src/worker/store/ /src/worker/store/
COPY src/worker/volume/ /src/worker/volume/
COPY builder/bake_model.py /tmp/bake_model.py
ARG MODEL_NAME
ARG MODEL_REVISION
ARG TOKENIZER_NAME
ARG TOKENIZER_REVISION
ARG QUANTIZATION
# Not where a network volume is mounted: that would hide the model.
ARG BASE_PATH=/models
# Another hub than Hugging Face's own, while building.
ARG HF_ENDPOINT
# The token exists in this step only, in no layer and not in the history.
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

# A release has its own version: make image TAG=...
LABEL org.opencontainers.image.title="vLLM worker for RunPod Serverless" \
    org.opencontainers.image.description="Takes jobs from RunPod's queue and answers them with vLLM" \
    org.opencontainers.image.licenses="MIT" \
    org.opencontainers.image.version="dev"

# The production start is `python -u src/handler.py`. vLLM's image has an entry point of its own.
WORKDIR /
ENTRYPOINT []
CMD ["python", "-u", "src/handler.py"]
