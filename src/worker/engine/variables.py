"""The environment variables that vLLM reads itself.

Apart from ``options``: importing that may fail because of one of these variables.
"""

from collections.abc import Iterator, Mapping

import vllm.envs

from worker.settings.mistakes import Mistake
from worker.settings.values import redact_setting

NAMES = frozenset(vllm.envs.environment_variables)


def wrong(given: Mapping[str, str]) -> Iterator[Mistake]:
    """Find variables of the process with values that vLLM can't read.

    vLLM itself would report one of them, with a traceback.

    Args:
        given: variables that are set.
    """
    for name in sorted(given.keys() & NAMES):
        try:
            getattr(vllm.envs, name)
        except (TypeError, ValueError) as error:
            yield Mistake(name, redact_setting(name, given[name]), f"vLLM can't read it: {error}")
