#!/usr/bin/env bash
# curl: a raw job of the endpoint, whose output contains the token counts.
#
# RUNPOD_ENDPOINT_ID is the endpoint's id, RUNPOD_API_KEY your account's key.
set -euo pipefail

# Milliseconds that the call waits for the job; the platform's gateway gives up after 100 seconds.
# If a worker has to start first, the job continues, and GET .../status/<its id> returns its output.
WAIT=90000

curl -sS --fail-with-body \
    "${RUNPOD_ENDPOINT_BASE_URL:-https://api.runpod.ai/v2}/$RUNPOD_ENDPOINT_ID/runsync?wait=$WAIT" \
    -H "Authorization: Bearer $RUNPOD_API_KEY" \
    -H "Content-Type: application/json" \
    -d '{
        "input": {
            "messages": [{"role": "user", "content": "Count to ten."}],
            "sampling_params": {"temperature": 0, "max_tokens": 100}
        }
    }'
