"""The environment variables that vLLM reads itself.

Apart from ``options``: importing that may fail because of one of these variables.
"""

from collections.abc import Iterator, Mapping

import vllm.envs

from worker.settings.mistakes import Mistake
from worker.settings.values import redact_setting

NAMES = frozenset(vllm.envs.environment_variables)
# Those that must stay off, with the reason.
STAY_OFF = {
    "VLLM_ENABLE_RESPONSES_API_STORE": (
        "vLLM would keep responses in the memory of one worker, where nobody can fetch them: "
        "leave it unset"
    ),
}


def wrong(given: Mapping[str, str]) -> Iterator[Mistake]:
    """Find variables of the process with values that vLLM can't read, or that must not be set.

    vLLM itself would report one of the first, with a traceback, and none of the others.
    """
    for name in sorted(given.keys() & NAMES):
        try:
            value = getattr(vllm.envs, name)
            if value and name in STAY_OFF:
                yield Mistake(name, given[name], STAY_OFF[name])
        except (TypeError, ValueError) as error:
            yield Mistake(name, redact_setting(name, given[name]), f"vLLM can't read it: {error}")
