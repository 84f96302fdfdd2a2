"""Settings and jobs in the documentation of ``runpod-workers/worker-vllm``, for docs/migration.md.

Names and defaults come from its README and its configuration page, from 1.0.0preview (May 2024) to
the release of August 2026. Until July 2026 the engine ran in the worker's process. Since then the
worker starts ``vllm serve`` as a separate process.
"""

from enum import StrEnum


class Verdict(StrEnum):
    """The effect of a setting or a job; ``IDLE``: the worker starts with a warning."""

    REFUSED = "refused"
    DIFFERS = "differs"
    IDLE = "no effect"
    WORKS = "works"
