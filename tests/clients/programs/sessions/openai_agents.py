"""Sessions of OpenAI's agents SDK: `python openai_agents.py BASE_URL`."""

import sys
from typing import Any

import openai
from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)

# Otherwise the SDK would send traces to OpenAI.
set_tracing_disabled(True)


@function_tool  # type: ignore[untyped-decorator]  # its types are not in .venv
def job_status(job_id: str) -> dict[str, str]:
    """Return the status of a job."""
    return {"status": job_id}


@function_tool(strict_mode=False)  # type: ignore[untyped-decorator]  # see job_status
def list_jobs(status: str = "any", limit: int = 10) -> list[str]:
    """List jobs."""
    return [status] * limit


def main(base_url: str) -> None:
    client = openai.AsyncOpenAI(base_url=f"{base_url}/v1", api_key="any", max_retries=0)
    helper = Agent(name="Helper", instructions="Help.", model="demo")
    for kind in (OpenAIChatCompletionsModel, OpenAIResponsesModel):
        agent: Any = Agent(
            name="Dispatcher",
            instructions="Be brief.",
            model=kind(model="demo", openai_client=client),
            model_settings=ModelSettings(temperature=0, parallel_tool_calls=True),
            tools=[job_status, list_jobs],
            handoffs=[helper],
        )
        found = Runner.run_sync(agent, "Is job 42 done?", max_turns=40)
        Runner.run_sync(
            agent, [*found.to_input_list(), {"role": "user", "content": "Go on."}], max_turns=40
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
