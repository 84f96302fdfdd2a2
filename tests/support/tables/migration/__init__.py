"""What ``runpod-workers/worker-vllm`` documents, and what becomes of it here: docs/migration.md.

Names and defaults are of its README and its configuration page, from 1.0.0preview (May 2024) to the
release of August 2026, which starts ``vllm serve`` beside the handler; until July 2026 the engine
ran in the process.
"""

from enum import StrEnum


class Verdict(StrEnum):
    """What becomes of a setting or a job; ``IDLE``: the start goes on, and its log says so."""

    REFUSED = "refused"
    DIFFERS = "differs"
    IDLE = "no effect"
    WORKS = "works"
