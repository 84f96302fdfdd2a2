"""The platform's limits, as RunPod documents them."""

_MEGABYTE = 1_000_000  # 2**20 is as likely; the smaller one finds more mistakes

RUN_BYTES = 10 * _MEGABYTE
RUNSYNC_BYTES = 20 * _MEGABYTE  # of a result, too, as workers' logs show
BALANCED_BYTES = 30 * _MEGABYTE  # of load balancing endpoints: of a request, and of a response
CHUNK_BYTES = 1 * _MEGABYTE
# Larger bodies are read up to here before they are refused, or clients would not see the answer.
READ_BYTES = 64 * _MEGABYTE

WAIT_MS = (1_000, 300_000)  # the `wait` of /runsync
_WEEK_MS = 7 * 24 * 3600 * 1000
EXECUTION_TIMEOUT_MS = (5_000, _WEEK_MS)
TTL_MS = (10_000, _WEEK_MS)

WEBHOOK_ATTEMPTS = 3
