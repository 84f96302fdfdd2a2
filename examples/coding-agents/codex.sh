#!/usr/bin/env bash
# Codex with an endpoint's model, through the Responses API: `npm install -g @openai/codex`.
#
# OPENAI_BASE_URL is https://api.runpod.ai/v2/<endpoint id>/openai/v1, OPENAI_API_KEY the account's
# key. The endpoint has ENABLE_AUTO_TOOL_CHOICE=1, TOOL_CALL_PARSER=auto and a context of 64,000
# tokens or more, because the first prompt has 22,000.
set -euo pipefail

models=$(curl -sS --fail-with-body "$OPENAI_BASE_URL/models" \
    -H "Authorization: Bearer $OPENAI_API_KEY")
read -r model context < <(python3 -c '
import json, sys
first = json.load(sys.stdin)["data"][0]
print(first["id"], first["max_model_len"])' <<<"$models")

# These options can also be in ~/.codex/config.toml. Without exec, it runs interactively in the
# terminal.
codex exec --skip-git-repo-check \
    -c "model_providers.runpod={name='RunPod', base_url='$OPENAI_BASE_URL', env_key='OPENAI_API_KEY', wire_api='responses'}" \
    -c model_provider=runpod -c "model=$model" -c "model_context_window=$context" \
    "${1:-Count to ten.}"
