"""LiteLLM's client against an endpoint: `python litellm_chat.py BASE_URL MODEL`."""

import json
import sys
from functools import partial

import litellm
import openai

# What it says about an error goes to stdout otherwise, which is the result's.
litellm.suppress_debug_info = True

MESSAGES = [{"role": "user", "content": "What does this worker do?"}]


def refusal(base_url: str) -> dict[str, str | int]:
    try:
        litellm.completion("openai/nope", MESSAGES, api_base=base_url, api_key="any")
    except openai.APIStatusError as error:
        name = type(error).__name__
        return {"error": name, "status": error.status_code, "message": str(error)}
    sys.exit("A model that is not there has answered")


def main(base_url: str, model: str) -> None:
    complete = partial(
        litellm.completion,
        # It tells providers apart by a prefix; the endpoint gets the name after it.
        *(f"openai/{model}", MESSAGES),
        api_base=base_url,
        api_key="any",
        temperature=0,
    )
    seen = {
        "whole": complete().choices[0].message.content,
        "pieces": [event.choices[0].delta.content or "" for event in complete(stream=True)],
        "refusal": refusal(base_url),
    }
    json.dump(seen, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
