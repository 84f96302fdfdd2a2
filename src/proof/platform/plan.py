"""The endpoints that a proof creates, and an estimate of their costs."""

import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from llm_worker_client.deploy.plan import validate_plan

DEFAULT_MODEL = "Qwen/Qwen3-0.6B"
# Several kinds of GPUs, so that one is more likely to be free.
_DEFAULT_POOLS = ["AMPERE_16", "AMPERE_24", "ADA_24"]
# Prefix of the names of all endpoints of all proofs, by which later runs find leftovers.
FAMILY = "llm-worker-proof-"
NAME_PATTERN = re.compile(rf"{FAMILY}[0-9a-f]{{8}}-(?:main|broken)")
MAX_WORKERS = 2
# Assumed price in USD of an hour of a worker with a small GPU: 0.00019 a second (docs/costs.md).
ASSUMED_HOURLY_PRICE = 0.69
# Expected minutes of a run, most of which are starts of workers, and its default limit.
EXPECTED_MINUTES = 20.0
DEFAULT_LIMIT_MINUTES = 60.0
# Jobs of one worker. A small number makes the platform's queue grow, so that it adds a worker.
_WORKER_CONCURRENCY = "8"
# More tokens than the memory of any GPU holds.
_IMPOSSIBLE_CONTEXT = "50000000"


@dataclass(frozen=True)
class ProofPlan:
    """The choices for a run."""

    image: str
    model: str = DEFAULT_MODEL
    gpu_pools: list[str] | None = None  # None: small ones, or by the model's size
    volume: str | None = None  # its id; without one, no batch can run
    hourly_price: float | None = None  # in USD for one worker; None to assume one
    # Of the run, without the deletion of its endpoints.
    limit_minutes: float = DEFAULT_LIMIT_MINUTES
    # Of the endpoints' names; each run has a new one.
    prefix: str = field(default_factory=lambda: f"{FAMILY}{secrets.token_hex(4)}")

    def main_request(self) -> dict[str, Any]:
        """Return the request that creates the endpoint for most observations."""
        return self._request("main", {"MAX_CONCURRENCY": _WORKER_CONCURRENCY}, MAX_WORKERS)

    def broken_request(self) -> dict[str, Any]:
        """Return the request that creates an endpoint whose workers fail to start."""
        return self._request("broken", {"MAX_MODEL_LEN": _IMPOSSIBLE_CONTEXT}, 1)

    def describe(self) -> Iterator[str]:
        main, broken = self.main_request(), self.broken_request()
        yield f"This creates, uses and deletes two endpoints: {main['name']}, {broken['name']}"
        yield f"image {self.image}, model {self.model}, GPU pools {' '.join(main['gpu']['pools'])}"
        yield f"at most {MAX_WORKERS} workers and 1 worker, none when idle"
        volume = f"network volume {self.volume}: a batch writes some files to it"
        yield volume if self.volume else "no network volume, so no batch runs (--volume ID)"
        price, source = self.hourly_price, "your price"
        if price is None:
            price, source = ASSUMED_HOURLY_PRICE, "an assumption: pass your GPU's --price-per-hour"
        expected = min(EXPECTED_MINUTES, self.limit_minutes)
        yield f"price of a worker: {price:.2f} USD an hour ({source})"
        yield f"expected: {expected:g} minutes, {self._cost(price, expected, 1.5):.2f} USD"
        worst = self._cost(price, self.limit_minutes, MAX_WORKERS + 1)
        yield (
            f"limit: {self.limit_minutes:g} minutes, then the deletion (up to 4 minutes); all"
            f" workers for that long cost {worst:.2f} USD at this price"
        )

    @staticmethod
    def _cost(price: float, minutes: float, workers: float) -> float:
        return price * minutes / 60 * workers

    def _request(self, role: str, settings: dict[str, str], workers_max: int) -> dict[str, Any]:
        pools = self.gpu_pools or (_DEFAULT_POOLS if self.model == DEFAULT_MODEL else None)
        fields: dict[str, Any] = {
            "name": f"{self.prefix}-{role}",
            "image": self.image,
            "settings": {"MODEL_NAME": self.model, **settings},
            "gpu_pools": pools,
            "volumes": [self.volume] if self.volume else None,
            "workers_max": workers_max,
        }
        plan, _ = validate_plan({name: value for name, value in fields.items() if value})
        return plan.to_request_body()
