"""LangChain's client against an endpoint: `python langchain_chat.py BASE_URL MODEL`."""

import json
import sys

import openai
from langchain_openai import ChatOpenAI

QUESTION = "What does this worker do?"


def refusal(base_url: str) -> dict[str, str | int]:
    try:
        ChatOpenAI(base_url=base_url, api_key="any", model="nope").invoke(QUESTION)
    except openai.APIStatusError as error:
        name = type(error).__name__
        return {"error": name, "status": error.status_code, "message": str(error)}
    sys.exit("A model that is not there has answered")


def main(base_url: str, model: str) -> None:
    chat = ChatOpenAI(base_url=base_url, api_key="any", model=model, temperature=0)
    seen = {
        "whole": chat.invoke(QUESTION).content,
        "pieces": [piece.content for piece in chat.stream(QUESTION)],
        "refusal": refusal(base_url),
    }
    json.dump(seen, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
