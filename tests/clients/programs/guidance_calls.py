"""guidance with an endpoint: `python guidance_calls.py BASE_URL KEY MODEL`."""

import json
import sys
from typing import Any

from guidance import assistant, gen, select, user
from guidance.models.experimental import VLLMModel


def answer(constraint: Any, base_url: str, key: str, model: str) -> Any:
    """Return the constrained part of an answer, which guidance captures from the whole text."""
    dialogue: Any = VLLMModel(model, base_url=base_url, api_key=key, echo=False)
    with user():
        dialogue += "Is job 42 done?"
    with assistant():
        dialogue += "Ticket " + constraint
    return dialogue["captured"]


def main(*endpoint: str) -> None:
    answers = {
        "choice": answer(select(["ochre", "umber"], name="captured"), *endpoint),
        "regex": answer(gen(name="captured", regex="[0-9]{3}-[0-9]{2}"), *endpoint),
    }
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
