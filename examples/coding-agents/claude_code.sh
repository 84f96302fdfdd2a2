#!/usr/bin/env bash
# Claude Code with an endpoint's model: `npm install -g @anthropic-ai/claude-code`.
#
# ANTHROPIC_BASE_URL is https://api.runpod.ai/v2/<endpoint id>/openai, ANTHROPIC_AUTH_TOKEN your
# account's key. The endpoint has ENABLE_AUTO_TOOL_CHOICE=1, TOOL_CALL_PARSER=auto and a context of
# 64,000 tokens or more, because the first prompt has 30,000.
set -euo pipefail

models=$(curl -sS --fail-with-body "$ANTHROPIC_BASE_URL/v1/models" \
    -H "Authorization: Bearer $ANTHROPIC_AUTH_TOKEN")
read -r model context < <(python3 -c '
import json, sys
first = json.load(sys.stdin)["data"][0]
print(first["id"], first["max_model_len"])' <<<"$models")

# Claude Code only knows the context lengths of Anthropic's models, and uses a small model of theirs
# for titles.
export CLAUDE_CODE_MAX_CONTEXT_TOKENS=$context CLAUDE_CODE_MAX_OUTPUT_TOKENS=8192
export ANTHROPIC_DEFAULT_HAIKU_MODEL=$model

# Without -p, it runs interactively in the terminal.
claude --model "$model" -p "${1:-Count to ten.}"
