"""Environment variables that vLLM reads itself.

This module is separate from ``options`` because importing ``options`` may fail because of a wrong
variable.
"""

from collections.abc import Iterator, Mapping

import vllm.envs

from worker.settings.mistakes import Mistake
from worker.settings.values import redact_by_setting_name

VLLM_VARIABLES = frozenset(vllm.envs.environment_variables)
# Variables that must not be set, with the reasons.
FORBIDDEN_VARIABLES = {
    "VLLM_ENABLE_RESPONSES_API_STORE": (
        "vLLM would keep responses in the memory of one worker, where nobody can fetch them: "
        "leave it unset"
    ),
}


def find_variable_mistakes(environ: Mapping[str, str]) -> Iterator[Mistake]:
    """Yield mistakes for variables that vLLM can't parse, and for variables that must not be set.

    vLLM itself would report only the first variable that it can't parse, with a traceback.
    """
    for name in sorted(environ.keys() & VLLM_VARIABLES):
        try:
            value = getattr(vllm.envs, name)
            if value and name in FORBIDDEN_VARIABLES:
                yield Mistake(name, environ[name], FORBIDDEN_VARIABLES[name])
        except (TypeError, ValueError) as error:
            yield Mistake(
                name, redact_by_setting_name(name, environ[name]), f"vLLM can't read it: {error}"
            )
