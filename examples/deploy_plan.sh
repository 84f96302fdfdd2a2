#!/usr/bin/env bash
# What `deploy apply` would send to make an endpoint. It asks nobody and needs no key: the same plan
# prints the same bytes, so that it can be kept and compared. Without --offline it also says what
# would change at the endpoint of this name.
set -euo pipefail

llm-worker-client deploy plan --offline \
    --name chat \
    --image "${IMAGE:-me/llm-worker:0.1.0-vllm0.32.0}" \
    --gpu-pools ADA_24 AMPERE_24 \
    --settings MODEL_NAME=Qwen/Qwen3-0.6B MAX_MODEL_LEN=4096 \
    "HF_TOKEN={{ RUNPOD_SECRET_hf_token }}"
