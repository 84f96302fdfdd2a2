"""Instructor's client against an endpoint: `python instructor_chat.py BASE_URL MODEL`."""

import json
import sys
from typing import Any

import instructor
import openai
from pydantic import BaseModel, ConfigDict


class Description(BaseModel):
    """What a worker is."""

    name: str
    streams: bool
    chunks: list[int]


class job_status(BaseModel):  # noqa: N801 - the tool is named for its class
    """The status of a job."""

    job_id: str


class Anything(BaseModel):
    """A JSON object."""

    model_config = ConfigDict(extra="allow")


def main(base_url: str, model: str) -> None:
    client = openai.OpenAI(base_url=base_url, api_key="any")
    # The demo model would not end an object by itself: it may use the tokens of an empty one only.
    text = {"model": model, "prompt": "{}<|im_end|>", "add_special_tokens": False}
    tokenized: Any = client.post("/tokenize", cast_to=object, body=text)

    def extract(
        mode: instructor.Mode, question: str, response_model: type[BaseModel], **options: object
    ) -> dict[str, object]:
        create = instructor.from_openai(client, mode=mode).chat.completions.create
        messages = [{"role": "user", "content": question}]
        params = {"model": model, "temperature": 0, "max_tokens": 200, "max_retries": 0, **options}
        answer: BaseModel = create(messages=messages, response_model=response_model, **params)
        return answer.model_dump()

    describe = "Describe the worker as JSON."
    few_tokens = {"allowed_token_ids": tokenized["tokens"]}
    answers = {
        "tools": extract(instructor.Mode.TOOLS, "Is job 42 done?", job_status),
        "json schema": extract(instructor.Mode.JSON_SCHEMA, describe, Description),
        "json": extract(instructor.Mode.JSON, describe, Anything, extra_body=few_tokens),
    }
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
