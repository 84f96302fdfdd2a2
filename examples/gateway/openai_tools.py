"""OpenAI's client: the model calls a function of this program and answers with its result.

The endpoint parses tool calls (ENABLE_AUTO_TOOL_CHOICE=1 and TOOL_CALL_PARSER, or auto).
OPENAI_BASE_URL and OPENAI_API_KEY are as in openai_chat.py.
"""

import json
from typing import Any

import openai


def job_status(job_id: str) -> dict[str, str]:
    return {"status": "COMPLETED" if job_id == "42" else "IN_QUEUE"}


parameters = {"type": "object", "properties": {"job_id": {"type": "string"}}}
tools: Any = [{"type": "function", "function": {"name": "job_status", "parameters": parameters}}]
messages: list[Any] = [{"role": "user", "content": "Is job 42 done?"}]

with openai.OpenAI() as client:
    model = client.models.list().data[0].id
    options: dict[str, Any] = {"model": model, "tools": tools, "temperature": 0}
    message = client.chat.completions.create(messages=messages, **options).choices[0].message
    messages.append(message)
    for call in message.tool_calls or []:
        print(f"{call.function.name}({call.function.arguments})")
        value = job_status(**json.loads(call.function.arguments))
        messages.append({"role": "tool", "tool_call_id": call.id, "content": json.dumps(value)})
    print(client.chat.completions.create(messages=messages, **options).choices[0].message.content)
