"""The environment variables that vLLM reads itself."""

from collections.abc import Iterator, Mapping

import vllm.envs

from worker.errors import Mistake
from worker.settings.values import masked

NAMES = frozenset(vllm.envs.environment_variables)


def wrong(given: Mapping[str, str]) -> Iterator[Mistake]:
    """Find those that are set, but to what vLLM can't read; it would tell one, by a traceback."""
    for name in sorted(given.keys() & NAMES):
        try:
            getattr(vllm.envs, name)
        except (TypeError, ValueError) as error:
            yield Mistake(name, masked(name, given[name]), f"vLLM can't read it: {error}")
