"""LangChain's client against an endpoint: `python langchain_chat.py BASE_URL MODEL`.

What examples/frameworks/langchain_chat.py does not show.
"""

import json
import sys
from functools import partial

import openai
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel

QUESTION = "What does this worker do?"
JOB = "Is job 42 done?"


class job_status(BaseModel):  # noqa: N801 - the tool is named for its class
    """The status of a job."""

    job_id: str


def refusal(base_url: str) -> dict[str, str | int]:
    try:
        ChatOpenAI(base_url=base_url, api_key="any", model="nope").invoke(QUESTION)
    except openai.APIStatusError as error:
        name = type(error).__name__
        return {"error": name, "status": error.status_code, "message": str(error)}
    sys.exit("A model that is not there has answered")


def streamed_calls(chat: ChatOpenAI) -> object:
    first, *rest = chat.bind_tools([job_status]).stream(JOB)
    return sum(rest, first).tool_calls


def refusal_of_tokens(embeddings: OpenAIEmbeddings) -> str:
    try:
        embeddings.embed_query("Kubernetes")
    except openai.BadRequestError as error:
        return str(error)
    sys.exit("Tokens of another model have been embedded")


def main(base_url: str, model: str) -> None:
    chat = ChatOpenAI(base_url=base_url, api_key="any", model=model, temperature=0)
    embeddings = partial(OpenAIEmbeddings, base_url=base_url, api_key="any", model="minilm")
    called = chat.with_structured_output(job_status, method="function_calling").invoke(JOB)
    unchecked = embeddings(check_embedding_ctx_length=False)
    answers = {
        "refusal": refusal(base_url),
        "structured": called.model_dump(),
        "calls": [streamed_calls(chat)],
        "embeddings": unchecked.embed_documents(["Hi", "Hello"]),
        # By default it sends tokens, made by the tokenizer of an OpenAI model.
        "refusal of tokens": refusal_of_tokens(embeddings()),
    }
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
