"""LiteLLM's client against an endpoint: `python litellm_chat.py BASE_URL MODEL`.

What examples/frameworks/litellm_chat.py does not show.
"""

import json
import sys
from functools import partial

import litellm
import openai

# Or it would print hints about errors to stdout, into the result.
litellm.suppress_debug_info = True

JOB = [{"role": "user", "content": "Is job 42 done?"}]
PARAMETERS = {"type": "object", "properties": {"job_id": {"type": "string"}}}
TOOL = {"type": "function", "function": {"name": "job_status", "parameters": PARAMETERS}}


def refusal(base_url: str) -> dict[str, str | int]:
    try:
        litellm.completion("openai/nope", JOB, api_base=base_url, api_key="any")
    except openai.APIStatusError as error:
        name = type(error).__name__
        return {"error": name, "status": error.status_code, "message": str(error)}
    sys.exit("A model that is not there has answered")


def tool_calls(message: litellm.Message) -> list[dict[str, object]]:
    functions = [call.function for call in message.tool_calls]
    return [
        {"name": function.name, "args": json.loads(function.arguments)} for function in functions
    ]


def main(base_url: str, model: str) -> None:
    access = {"api_base": base_url, "api_key": "any"}
    # The prefix names the provider; the endpoint gets the name without it.
    asked = {"messages": JOB, "tools": [TOOL], "temperature": 0, **access}
    call = partial(litellm.completion, f"openai/{model}", **asked)
    answers = {
        "refusal": refusal(base_url),
        "calls": [
            tool_calls(call().choices[0].message),
            tool_calls(litellm.stream_chunk_builder(list(call(stream=True))).choices[0].message),
        ],
    }
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
