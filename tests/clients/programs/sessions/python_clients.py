"""Sessions of clients of `nox -s clients`: `python python_clients.py CLIENT BASE_URL`."""

import sys
from typing import Any

import instructor
import litellm
import openai
from langchain_core.messages import AnyMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from langchain_runpod import ChatRunPod, RunPod
from pydantic import BaseModel, ValidationError

PARAMETERS = {"type": "object", "properties": {"job_id": {"type": "string"}}}
FUNCTION = {"name": "job_status", "description": "The status of a job.", "parameters": PARAMETERS}
TOOL = {"type": "function", "function": FUNCTION}
QUESTION = "Is job 42 done?"
LAST, MAX_TURNS = "All is done.", 40


class Description(BaseModel):
    """A description of a worker."""

    name: str
    streams: bool
    chunks: list[int]


class job_status(BaseModel):  # noqa: N801 - the tool is named for its class
    """The status of a job."""

    job_id: str


def langchain_session(chat: Any, *, stream: bool) -> None:
    messages: list[AnyMessage] = [SystemMessage("Be brief."), HumanMessage(QUESTION)]
    for _ in range(MAX_TURNS):
        try:
            if stream:
                first, *rest = chat.stream(messages)
                answer = sum(rest, first)
            else:
                answer = chat.invoke(messages)
        except ValidationError:
            # LangChain itself can't represent arguments that are a list.
            messages.append(HumanMessage("Go on."))
            continue
        messages.append(answer)
        calls = [*answer.tool_calls, *answer.invalid_tool_calls]
        messages += [ToolMessage("COMPLETED", tool_call_id=call["id"]) for call in calls]
        messages += [] if calls else [HumanMessage("Go on.")]
        if answer.text == LAST:
            return
    sys.exit("the script has no end")


def langchain(base_url: str) -> None:
    access: Any = {"base_url": f"{base_url}/v1", "api_key": "any"}
    for responses in (False, True):
        chat = ChatOpenAI(**access, model="demo", temperature=0, use_responses_api=responses)
        for stream in (False, True):
            langchain_session(chat.bind_tools([job_status]), stream=stream)
    plain = ChatOpenAI(**access, model="demo", max_tokens=80)
    plain.with_structured_output(Description).invoke("Describe the worker.")
    plain.with_structured_output(Description, method="json_mode").invoke("Describe the worker.")
    OpenAI(**access, model="demo").invoke("Hi")
    embeddings: Any = {**access, "model": "minilm"}
    OpenAIEmbeddings(**embeddings).embed_documents(["Hi", "Hello"])
    OpenAIEmbeddings(**embeddings, check_embedding_ctx_length=False).embed_query("Hi")


def litellm_session(model: str, api_base: str, *, stream: bool) -> None:
    params = {"model": model, "api_base": api_base, "api_key": "any", "tools": [TOOL]}
    messages: list[Any] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": QUESTION},
    ]
    for _ in range(MAX_TURNS):
        try:
            answer = litellm.completion(messages=messages, stream=stream, **params)
        except litellm.BadRequestError:
            # LiteLLM itself can't send invalid arguments to Anthropic's route.
            del messages[-2:]
            messages.append({"role": "user", "content": "Go on."})
            continue
        if stream:
            answer = litellm.stream_chunk_builder(list(answer), messages=messages)
        message = answer.choices[0].message
        messages.append(message.model_dump() if stream else message)
        messages += [
            {"role": "tool", "tool_call_id": call.id, "content": "COMPLETED"}
            for call in message.tool_calls or ()
        ]
        if not message.tool_calls:
            messages.append({"role": "user", "content": "Go on."})
        if message.content == LAST:
            return
    sys.exit("the script has no end")


def lite_llm(base_url: str) -> None:
    # Otherwise LiteLLM prints hints about errors.
    litellm.suppress_debug_info = True
    for provider, path in (("openai", "/v1"), ("hosted_vllm", "/v1"), ("anthropic", "")):
        for stream in (False, True):
            litellm_session(f"{provider}/demo", f"{base_url}{path}", stream=stream)
    access: Any = {"api_base": f"{base_url}/v1", "api_key": "any"}
    litellm.responses(model="openai/demo", input=QUESTION, **access)
    litellm.text_completion(model="text-completion-openai/demo", prompt="Hi", **access)
    litellm.embedding(model="openai/minilm", input=["Hi", "Hello"], **access)


def instructors(base_url: str) -> None:
    client = openai.OpenAI(base_url=f"{base_url}/v1", api_key="any", max_retries=0)
    for mode, model in (
        (instructor.Mode.TOOLS, job_status),
        (instructor.Mode.TOOLS_STRICT, job_status),
        (instructor.Mode.JSON, Description),
        (instructor.Mode.JSON_SCHEMA, Description),
        (instructor.Mode.MD_JSON, Description),
    ):
        create: Any = instructor.from_openai(client, mode=mode).chat.completions.create
        messages = [{"role": "user", "content": QUESTION}]
        # The first answers of the script are invalid, so that the client explains its errors.
        create(model="demo", messages=messages, response_model=model, max_retries=4)


def runpod(base_url: str) -> None:
    access: Any = {"endpoint_id": "local", "api_key": "any", "api_base": base_url}
    params: Any = {"temperature": 0.7, "max_tokens": 40, "top_p": 0.9, "top_k": 40, "stop": ["Q"]}
    none: Any = {}
    messages: list[AnyMessage] = [SystemMessage("Be brief."), HumanMessage(QUESTION)]
    for _ in range(3):
        for settings in (none, params):
            answer = ChatRunPod(**access, **settings).invoke(messages)
            messages += [answer, HumanMessage("Go on.")]
            RunPod(**access, **settings).invoke("Hi")
    list(ChatRunPod(**access).stream(messages))


SESSIONS = {
    "langchain": langchain,
    "langchain-runpod": runpod,
    "litellm": lite_llm,
    "instructor": instructors,
}


if __name__ == "__main__":
    SESSIONS[sys.argv[1]](sys.argv[2])
