#!/usr/bin/env bash
# Prints what `deploy apply` would send to create an endpoint. It sends no requests and needs no key.
# The same plan prints the same bytes, so that the output can be stored and compared. Without
# --offline, it also shows the changes to the existing endpoint of this name.
set -euo pipefail

llm-worker-client deploy plan --offline \
    --name chat \
    --image "${IMAGE:-me/llm-worker:0.1.0-vllm0.32.0}" \
    --gpu-pools ADA_24 AMPERE_24 \
    --settings MODEL_NAME=Qwen/Qwen3-0.6B MAX_MODEL_LEN=4096 \
    "HF_TOKEN={{ RUNPOD_SECRET_hf_token }}"
