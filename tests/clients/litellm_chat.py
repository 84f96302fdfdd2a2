"""LiteLLM's client against an endpoint: `python litellm_chat.py BASE_URL MODEL`."""

import json
import sys
from functools import partial

import litellm
import openai

# Or it would print hints about errors to stdout, into the result.
litellm.suppress_debug_info = True

MESSAGES = [{"role": "user", "content": "What does this worker do?"}]
JOB = [{"role": "user", "content": "Is job 42 done?"}]
PARAMETERS = {"type": "object", "properties": {"job_id": {"type": "string"}}}
TOOL = {"type": "function", "function": {"name": "job_status", "parameters": PARAMETERS}}


def refusal(base_url: str) -> dict[str, str | int]:
    try:
        litellm.completion("openai/nope", MESSAGES, api_base=base_url, api_key="any")
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
    complete = partial(
        litellm.completion, f"openai/{model}", messages=MESSAGES, **access, temperature=0
    )
    call = partial(complete, messages=JOB, tools=[TOOL])
    embedded = litellm.embedding("openai/minilm", ["Hi", "Hello"], **access)
    answers = {
        "whole": complete().choices[0].message.content,
        "pieces": [event.choices[0].delta.content or "" for event in complete(stream=True)],
        "refusal": refusal(base_url),
        "calls": [
            tool_calls(call().choices[0].message),
            tool_calls(litellm.stream_chunk_builder(list(call(stream=True))).choices[0].message),
        ],
        "embeddings": [item["embedding"] for item in embedded.data],
    }
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
