# The worker on a machine with a GPU: the official image of vLLM, the SDK, and src/.
# The settings come as environment variables of the endpoint; MODEL_NAME is the one it needs.

FROM vllm/vllm-openai:v0.32.0

# For the processes that vLLM starts: the worker's own Python is told by -u below. What the SDK
# must find in the environment, the worker itself sets (EXPORTS in src/worker/settings/environment.py), so
# that it runs in the same way outside this image.
ENV PYTHONUNBUFFERED=1

COPY builder/requirements.txt /tmp/requirements.txt
# The import fails the build, not the first start, should a package that the SDK needs be missing.
RUN command -v python || ln -s "$(command -v python3)" /usr/local/bin/python; \
    python -m pip install --no-deps --no-cache-dir -r /tmp/requirements.txt \
    && python -c "import runpod"

COPY src/ /src/

# The production start is `python -u src/handler.py`. vLLM's image has an entry point of its own.
WORKDIR /
ENTRYPOINT []
CMD ["python", "-u", "src/handler.py"]
