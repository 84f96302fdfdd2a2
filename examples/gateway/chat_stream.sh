#!/usr/bin/env bash
# curl: a streamed chat. The events arrive while the model writes; the last one is [DONE].
#
# OPENAI_BASE_URL is https://api.runpod.ai/v2/<endpoint id>/openai/v1, OPENAI_API_KEY the account's
# key. Without a "model", the endpoint's first model answers.
set -euo pipefail

curl -sSN --fail-with-body "$OPENAI_BASE_URL/chat/completions" \
    -H "Authorization: Bearer $OPENAI_API_KEY" \
    -H "Content-Type: application/json" \
    -d '{
        "messages": [{"role": "user", "content": "Count to ten."}],
        "temperature": 0,
        "stream": true,
        "stream_options": {"include_usage": true}
    }'
