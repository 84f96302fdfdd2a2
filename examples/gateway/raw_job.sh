#!/usr/bin/env bash
# curl, the raw form: a job of the endpoint, and its answer with the tokens counted.
#
# RUNPOD_ENDPOINT_ID names the endpoint, RUNPOD_API_KEY is the account's key.
set -euo pipefail

# Milliseconds that the call waits for the job: a worker may have to start first. A job that takes
# longer goes on, and GET .../status/<its id> has its answer.
WAIT=300000

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
