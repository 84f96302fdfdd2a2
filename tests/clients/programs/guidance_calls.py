"""guidance with an endpoint: `python guidance_calls.py BASE_URL KEY MODEL`."""

import json
import sys
from typing import Any

from guidance import assistant, gen, select, user
from guidance.models.experimental import VLLMModel


def answer(constraint: Any, base_url: str, key: str, model: str) -> str:
    """Return the text of an answer that must be `Ticket` and the constrained part."""
    dialogue: Any = VLLMModel(model, base_url=base_url, api_key=key, echo=False)
    with user():
        dialogue += "Is job 42 done?"
    with assistant():
        dialogue += "Ticket " + constraint
    # Not a captured variable: guidance captures none if vLLM sends the last two tokens together,
    # because it appends the end-of-sequence token to the text that it matches.
    return str(dialogue).rpartition("assistant\n")[2]


def main(*endpoint: str) -> None:
    answers = {
        "choice": answer(select(["ochre", "umber"]), *endpoint),
        "regex": answer(gen(regex="[0-9]{3}-[0-9]{2}"), *endpoint),
    }
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
