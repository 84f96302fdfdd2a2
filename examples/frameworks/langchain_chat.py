"""LangChain: a streamed chat, an object that matches a schema, and a tool call.

Needs `langchain-openai`. OPENAI_BASE_URL is https://api.runpod.ai/v2/<endpoint id>/openai/v1,
OPENAI_API_KEY your account's key. For the tool, the endpoint must parse tool calls
(ENABLE_AUTO_TOOL_CHOICE=1 and TOOL_CALL_PARSER, or auto).
"""

import openai
from langchain_openai import ChatOpenAI
from pydantic import BaseModel


class Worker(BaseModel):
    """The fields of the answer."""

    name: str
    streams: bool
    chunks: list[int]


class job_status(BaseModel):  # noqa: N801 - the tool is named for its class
    """The status of a job."""

    job_id: str


chat = ChatOpenAI(model=openai.OpenAI().models.list().data[0].id, temperature=0, max_tokens=200)

for piece in chat.stream("Count to ten."):
    print(piece.content, end="", flush=True)
print()
print(chat.with_structured_output(Worker).invoke("Describe the worker as JSON."))
for call in chat.bind_tools([job_status]).invoke("Is job 42 done?").tool_calls:
    print(call["name"], call["args"])
