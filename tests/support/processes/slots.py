"""What the engine of a local endpoint does, by its own counts."""

from support.processes.background import wait_until
from support.processes.local_endpoint import LocalEndpoint

RUNNING = "vllm:num_requests_running"
ENDED_BY_LENGTH = 'finished_reason="length"'
SHORT = {"prompt": "Hi", "sampling_params": {"max_tokens": 1, "ignore_eos": True}}


def count(endpoint: LocalEndpoint, metric: str) -> float:
    """Return a metric of vLLM's."""
    (text,) = endpoint.run({"openai_route": "/metrics"})
    # Not when its counter was made.
    told = [line for line in text.splitlines() if line[:1] != "#" and "_created{" not in line]
    return sum(float(line.rsplit(" ", 1)[1]) for line in told if metric in line)


def freed_without_an_end(endpoint: LocalEndpoint, ended_by_length: float) -> bool:
    """Wait until no request has a slot; return whether none has used up its tokens.

    Args:
        endpoint: which nobody else calls.
        ended_by_length: how many had, before those that were given up.
    """
    following = 0

    def free() -> bool:
        nonlocal following
        # The engine counts anew with each of its steps, so it needs something to do.
        endpoint.run(SHORT)
        following += 1
        return count(endpoint, RUNNING) == 0

    wait_until(free)
    return count(endpoint, ENDED_BY_LENGTH) - following == ended_by_length
