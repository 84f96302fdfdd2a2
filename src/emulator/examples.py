"""Commands to paste, which try an endpoint."""

from emulator.state.job_queue import Queue

_MODEL_NAME_S = 10.0  # how long to wait for the model's name
_QUESTION = "What does this worker do?"

_TEMPLATE = """\
# curl, the raw form
curl -s {url}/runsync {key_header}-H 'Content-Type: application/json' \\
  -d '{{"input": {{"messages": [{{"role": "user", "content": "{question}"}}], \
"sampling_params": {{"max_tokens": 100, "temperature": 0}}}}}}'

# curl, the OpenAI API, streamed
curl -sN {openai_url}/chat/completions {key_header}-H 'Content-Type: application/json' \\
  -d '{{"model": "{model}", "stream": true, \
"messages": [{{"role": "user", "content": "{question}"}}]}}'

# the openai client
{python} - <<'EOF'
{key_import}from openai import OpenAI
client = OpenAI(base_url="{openai_url}", api_key={key})
messages = [{{"role": "user", "content": "{question}"}}]
for event in client.chat.completions.create(model="{model}", messages=messages, stream=True):
    print(event.choices[0].delta.content or "", end="", flush=True)
print()
EOF

# the runpod client
{python} - <<'EOF'
{key_import}import runpod
runpod.endpoint_url_base = "{api_url}"
endpoint = runpod.Endpoint("{endpoint}", api_key={key})
messages = [{{"role": "user", "content": "{question}"}}]
greedy = {{"max_tokens": 100, "temperature": 0}}
print(endpoint.run_sync({{"messages": messages, "sampling_params": greedy}}))
EOF
"""


def examples(*, api_url: str, endpoint: str, model: str | None, with_key: bool, python: str) -> str:
    """Return commands for a shell. The API key stays a variable's name: it is not printed."""
    url = f"{api_url}/{endpoint}"
    return _TEMPLATE.format(
        api_url=api_url,
        endpoint=endpoint,
        url=url,
        openai_url=f"{url}/openai/v1",
        model=model or "<MODEL>",
        question=_QUESTION,
        python=python,
        key='os.environ["EMULATOR_API_KEY"]' if with_key else '"any"',
        key_import="import os\n" if with_key else "",
        key_header='-H "Authorization: Bearer $EMULATOR_API_KEY" ' if with_key else "",
    )


async def fetch_model_name(queue: Queue, wait_s: float = _MODEL_NAME_S) -> str | None:
    """Return the name of the model that the workers serve; None if they have no OpenAI API."""
    job = queue.submit({"input": {"openai_route": "/v1/models", "openai_input": None}}, sync=True)
    if not await job.wait_ended(wait_s):
        queue.cancel(job)
    try:
        return str(job.output[0]["data"][0]["id"])
    except (IndexError, KeyError, TypeError):
        return None
