"""The platform's limits, as RunPod documents them."""

_MEGABYTE = 1_000_000  # not documented as 2**20: the smaller one finds more

RUN_BYTES = 10 * _MEGABYTE
RUNSYNC_BYTES = 20 * _MEGABYTE  # also a result's, as workers' logs show
CHUNK_BYTES = 1 * _MEGABYTE
# Bodies are read up to here before they are refused, so that a client gets to see the answer.
READ_BYTES = 64 * _MEGABYTE

WAIT_MS = (1_000, 300_000)  # the `wait` of /runsync
_WEEK_MS = 7 * 24 * 3600 * 1000
EXECUTION_TIMEOUT_MS = (5_000, _WEEK_MS)
TTL_MS = (10_000, _WEEK_MS)

WEBHOOK_ATTEMPTS = 3
