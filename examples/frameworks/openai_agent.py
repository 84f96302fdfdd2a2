"""OpenAI's agents SDK: an agent that calls a function of this program and answers with its result.

Needs `openai-agents`, and an endpoint that parses tool calls (ENABLE_AUTO_TOOL_CHOICE=1 and
TOOL_CALL_PARSER, or auto). OPENAI_BASE_URL is https://api.runpod.ai/v2/<endpoint id>/openai/v1,
OPENAI_API_KEY your account's key.
"""

import openai
from agents import Agent, ModelSettings, Runner, function_tool, set_tracing_disabled

# Otherwise the SDK would send traces to OpenAI.
set_tracing_disabled(True)


def job_status(job_id: str) -> dict[str, str]:
    """Return the status of a job."""
    print("called with", job_id)
    return {"status": "COMPLETED" if job_id == "42" else "IN_QUEUE"}


agent = Agent(
    name="Dispatcher",
    model=openai.OpenAI().models.list().data[0].id,
    model_settings=ModelSettings(temperature=0),
    tools=[function_tool(job_status)],
)
print(Runner.run_sync(agent, "Is job 42 done?").final_output)
