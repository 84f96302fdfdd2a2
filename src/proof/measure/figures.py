"""Loads, and the figures of their answers."""

import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import accumulate, pairwise

# Arrivals of the tokens of an answer: milliseconds since the request was sent, and the number of
# tokens received by then.
Arrivals = list[tuple[float, int]]


@dataclass(frozen=True)
class Load:
    """Requests of callers who each send the next one when they get a response.

    Args:
        callers: Number of concurrent callers.
        requests: Number of all requests.
        tokens: Exact number of tokens of each answer.
        stream: Whether the answers are streamed.
        processes: Number of processes that share the callers; with 1, they are in this process.
    """

    callers: int
    requests: int
    tokens: int = 64
    stream: bool = True
    processes: int = 1


@dataclass
class Answer:
    """The arrivals of the tokens of one answer, in seconds of a monotonic clock.

    Args:
        sent: Time at which the request was sent.
        arrivals: Time of each read, and its number of tokens.
        ended: Time at which the answer ended.
        tokens: Number of tokens of the answer.
    """

    sent: float
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    ended: float = 0.0
    tokens: int = 0

    def since_sent(self) -> Arrivals:
        """Return the number of tokens received after each number of milliseconds."""
        counts = accumulate(count for _, count in self.arrivals)
        times = (round(1000 * (at - self.sent), 3) for at, _ in self.arrivals)
        return list(zip(times, counts, strict=True))

    @property
    def gaps(self) -> list[float]:
        """The seconds between consecutive tokens; 0 between tokens of the same read."""
        found: list[float] = []
        for (before, _), (at, count) in pairwise(self.arrivals):
            found += [at - before, *[0.0] * (count - 1)]
        return found


@dataclass(frozen=True)
class Figures:
    """Figures of a load: times in milliseconds, CPU times in milliseconds per request.

    Shares are percentages of all cores of the machine over the duration of the load.

    Args:
        own_cpu: CPU time of the side's processes.
        platform_cpu: CPU time of the local platform between the side and the callers.
        client_cpu: CPU time of the callers.
        posts: Number of the worker's POSTs per answer.
    """

    requests_per_s: float
    tokens_per_s: float
    first_p50: float
    first_p99: float
    latency_p50: float
    gap_p99: float
    own_cpu: float = 0.0
    platform_cpu: float | None = None
    client_cpu: float | None = None
    posts: float | None = None

    def as_json(self) -> dict[str, float]:
        """Return the figures by their names, without those that the side does not have."""
        values = asdict(self) | {
            f"{name}_share": self._share(getattr(self, f"{name}_cpu"))
            for name in ("own", "platform", "client")
        }
        return {name: round(value, 3) for name, value in values.items() if value is not None}

    def _share(self, cpu_ms: float | None) -> float | None:
        """Return the percentage of the machine that a CPU time per request uses."""
        if cpu_ms is None:
            return None
        cores = len(os.sched_getaffinity(0))
        return 100 * (cpu_ms / 1000) * self.requests_per_s / cores


@dataclass(frozen=True)
class Measurement:
    """The figures of a load, and the arrivals of the tokens of its first answer."""

    figures: Figures
    arrivals: Arrivals


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[round(share * (len(ordered) - 1))] if ordered else 0.0


def figures(answers: Sequence[Answer], **others: float) -> Figures:
    """Compute the figures of a load from its answers."""
    seconds = max(a.ended for a in answers) - min(a.sent for a in answers)
    firsts = [1000 * (a.arrivals[0][0] - a.sent) for a in answers if a.arrivals]
    latencies = [1000 * (a.ended - a.sent) for a in answers]
    gaps = [1000 * gap for a in answers for gap in a.gaps]
    return Figures(
        requests_per_s=len(answers) / seconds,
        tokens_per_s=sum(a.tokens for a in answers) / seconds,
        first_p50=percentile(firsts, 0.5),
        first_p99=percentile(firsts, 0.99),
        latency_p50=percentile(latencies, 0.5),
        gap_p99=percentile(gaps, 0.99),
        **others,
    )


def median_of(rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the median of each figure over rounds with the same figures."""
    return {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}
