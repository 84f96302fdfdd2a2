"""Python clients with an endpoint: `python python_clients.py BASE_URL MODEL`.

Uses Instructor, and features of LangChain and LiteLLM that are not in examples/frameworks.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

import instructor
import litellm
import openai
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel

# Otherwise LiteLLM prints hints about errors to stdout, into the result.
litellm.suppress_debug_info = True

JOB = "Is job 42 done?"
PARAMETERS = {"type": "object", "properties": {"job_id": {"type": "string"}}}
TOOL = {"type": "function", "function": {"name": "job_status", "parameters": PARAMETERS}}


class Description(BaseModel):
    """A description of a worker."""

    name: str
    streams: bool
    chunks: list[int]


class job_status(BaseModel):  # noqa: N801 - the tool is named for its class
    """The status of a job."""

    job_id: str


def refusal(call: Callable[[], object]) -> dict[str, str | int]:
    try:
        call()
    except openai.APIStatusError as error:
        name = type(error).__name__
        return {"error": name, "status": error.status_code, "message": str(error)}
    sys.exit("What should be refused was answered")


def langchain(base_url: str, model: str) -> dict[str, Any]:
    access: Any = {"base_url": base_url, "api_key": "any"}
    chat = ChatOpenAI(**access, model=model, temperature=0)
    first, *rest = chat.bind_tools([job_status]).stream(JOB)
    structured = chat.with_structured_output(job_status, method="function_calling").invoke(JOB)
    embeddings = {**access, "model": "minilm"}
    unchecked = OpenAIEmbeddings(**embeddings, check_embedding_ctx_length=False)
    return {
        "refusal": refusal(lambda: ChatOpenAI(**access, model="nope").invoke(JOB)),
        "structured": structured.model_dump(),
        "calls": [(call["name"], call["args"]) for call in sum(rest, first).tool_calls],
        "embeddings": unchecked.embed_documents(["Hi", "Hello"]),
        # By default the client sends tokens of an OpenAI model's tokenizer.
        "refusal of tokens": refusal(
            lambda: OpenAIEmbeddings(**embeddings).embed_query("Kubernetes")
        ),
    }


def lite_llm(base_url: str, model: str) -> dict[str, Any]:
    messages = [{"role": "user", "content": JOB}]
    params: Any = {"messages": messages, "api_base": base_url, "api_key": "any", "temperature": 0}
    # The prefix is the name of the provider; the endpoint receives the name without it.
    stream = litellm.completion(f"openai/{model}", **params, tools=[TOOL], stream=True)
    calls = litellm.stream_chunk_builder(list(stream)).choices[0].message.tool_calls
    return {
        "refusal": refusal(lambda: litellm.completion("openai/nope", **params)),
        "calls": [(one.function.name, json.loads(one.function.arguments)) for one in calls],
    }


def instructors(base_url: str, model: str) -> dict[str, Any]:
    client = openai.OpenAI(base_url=base_url, api_key="any")

    def extract(
        mode: instructor.Mode, question: str, response_model: type[BaseModel]
    ) -> dict[str, object]:
        create = instructor.from_openai(client, mode=mode).chat.completions.create
        messages = [{"role": "user", "content": question}]
        params = {"model": model, "temperature": 0, "max_tokens": 200, "max_retries": 0}
        answer: BaseModel = create(messages=messages, response_model=response_model, **params)
        return answer.model_dump()

    describe = "Describe the worker as JSON."
    return {
        "tools": extract(instructor.Mode.TOOLS, JOB, job_status),
        "json schema": extract(instructor.Mode.JSON_SCHEMA, describe, Description),
    }


def main(*endpoint: str) -> None:
    answers = {
        "langchain": langchain(*endpoint),
        "litellm": lite_llm(*endpoint),
        "instructor": instructors(*endpoint),
    }
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
