"""Records the requests of third-party clients (``nox -s recordings``).

Each client talks to a server that answers from a script: its sessions have many turns with calls of
tools, and answers as models really write them, with unknown tools, invalid arguments and broken
streams. The files are in tests/support/traffic/recorded.

    python -m clients.record [client ...]
"""

import os
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from support import ROOT
from support.clients import ENVIRON, PYTHON_CLIENTS, client_folder, npm_folder, run_client
from support.traffic.recording import Turn, recording_server
from support.traffic.store import FOLDER, Request, decode, encode, shorten

SESSIONS = Path(__file__).parent / "programs" / "sessions"
UUID = "0b2c4d6e-0000-4000-8000-0123456789ab"
PLAIN = Turn('{"name": "demo", "streams": true, "chunks": [1, 3]}')
CALL = ("job_status", '{"job_id": "42"}')
OTHER_CALL = ("list_jobs", '{"status": "any", "limit": 3}')
VALID_TURNS = (
    Turn("I look.", (CALL,)),
    Turn(calls=(CALL, CALL)),
    Turn("Again.", (CALL,), reasoning="The user wants the status."),
    Turn(reasoning="The user wants the status.", calls=(CALL,)),
    Turn("A face: \N{GRINNING FACE}, a line\N{LINE SEPARATOR}separator.", (CALL,)),
    Turn("It is done."),
    Turn(calls=(("job_status", '{"job_id": "\N{GRINNING FACE}", "more": {"deep": [1, null]}}'),)),
)
# Calls that models write, and for which clients must find an answer.
ODD_TURNS = (
    # Not arguments that are a list: vLLM's /v1/messages refuses them in all further requests.
    Turn(calls=(("job_status", '{"job_id": "42", "wei": 100000000000000000000000}'),)),
    Turn(calls=(("get weather", "{}"),)),
    Turn(calls=(("create_event<|channel|>analysis", '{"job_id": "42"}'), CALL)),
    Turn(calls=((f"mcp__{UUID}__slack_search_public_and_private", "{}"),)),
    Turn(calls=(("job_status", ""),)),
    Turn(calls=(("job_status", '{"job_id": "4'),), is_cut=True),
    Turn("It is", is_cut=True),
    Turn(""),
)
INSTRUCTOR_TURNS = (
    Turn(calls=(("job_status", '{"job": "42"}'),)),
    Turn(calls=(("job_status", '{"job_id": "4'),)),
    Turn(calls=(CALL,)),
    Turn(calls=(CALL,)),
)


# Calls of tools that the agents have.
CLAUDE_TURNS = (
    Turn("I look.", (("Bash", '{"command": "echo 1 > a.txt; ls", "description": "List"}'),)),
    Turn(calls=(("Read", '{"file_path": "a.txt"}'), ("Bash", '{"command": "cat a.txt"}'))),
    Turn("I edit.", (("Read", '{"file_path": "c.txt"}'),), reasoning="It has one line."),
    Turn(calls=(("Edit", '{"file_path": "a.txt", "old_string": "1", "new_string": "2"}'),)),
    Turn(calls=(("Write", '{"file_path": "b.txt", "content": "\\u2028\\ud83d\\ude00"}'),)),
    Turn(calls=(("Bash", '{"command": "exit 3", "timeout": 100000000000000000000000}'),)),
    Turn(calls=(("get weather", "{}"),)),
    Turn(calls=(("create_event<|channel|>analysis", '{"a": 1}'), ("Read", '{"file_path": "x"}'))),
    Turn(calls=(("Read", ""),)),
    Turn(calls=(("Read", '{"file_path": "a.'),), is_cut=True),
    Turn("It is", is_cut=True),
    Turn(""),
    Turn(calls=(("Bash", '{"command": "true"}'),)),
)
CODEX_TURNS = (
    Turn("I look.", (("exec_command", '{"cmd": "echo 1 > a.txt; ls"}'),)),
    Turn(calls=(("exec_command", '{"cmd": "ls"}'), ("exec_command", '{"cmd": "exit 3"}'))),
    Turn(calls=(("update_plan", '{"plan": [{"step": "a", "status": "pending"}]}'),)),
    Turn("Again.", (("exec_command", '{"cmd": "cat a.txt"}'),), reasoning="It has one line."),
    Turn(calls=(("shell", '{"command": ["ls"]}'),)),
    Turn(calls=(("exec_command", '{"cmd": "true", "yield_time_ms": 100000000000000000000000}'),)),
    Turn(calls=(("get weather", "{}"),)),
    Turn(calls=(("create_event<|channel|>analysis", '{"a": 1}'),)),
    Turn(calls=(("exec_command", "[]"),)),
    Turn(calls=(("exec_command", ""),)),
    Turn(calls=(("exec_command", '{"cmd": "l'),), is_cut=True),
    Turn("It is", is_cut=True),
    Turn(calls=(("exec_command", '{"cmd": "echo \\u2028\\ud83d\\ude00"}'),)),
)


@dataclass(frozen=True)
class Client:
    """A client of the recording.

    Args:
        command: Its command; ``{url}`` stands for the server's URL.
        folder: Folder of its environment; the working directory of programs on the standard input.
        program: File with the standard input; empty without one.
        environ: Variables, with ``{url}`` for the server's URL.
        turns: Answers to its requests with tools.
    """

    command: tuple[str, ...]
    folder: Path = PYTHON_CLIENTS
    program: str = ""
    environ: dict[str, str] = field(default_factory=dict)
    turns: tuple[Turn, ...] = (*VALID_TURNS, *ODD_TURNS)
    plain: Turn = PLAIN


def python_client(folder: Path, program: str, *arguments: str, **fields: object) -> Client:
    python = Path(sys.executable) if folder == ROOT else folder / "bin" / "python"
    command = (str(python), "-W", "ignore", "-", *arguments)
    return Client(command, folder, program, **fields)  # type: ignore[arg-type]  # passed on


def shell_client(script: str, turns: tuple[Turn, ...], **environ: str) -> Client:
    """Return a client that a shell starts in an empty folder."""
    folder = npm_folder("coding-agents")
    variables = {**environ, "PATH": f"{folder / 'node_modules' / '.bin'}:{os.environ['PATH']}"}
    return Client(("bash", "-c", script), folder, environ=variables, turns=turns)


URL = "{url}"
# Two questions to an agent, the second one with the first one's history.
CLAUDE = """
claude --model demo --allowedTools Bash,Read,Edit,Write -p 'Is job 42 done?' || true
claude --model demo --allowedTools Bash,Read,Edit,Write -c -p 'Go on.' || true
"""
PROVIDER = "{name='RunPod', base_url='{url}/v1', env_key='OPENAI_API_KEY', wire_api='responses'}"
CODEX = f"""
options=(--skip-git-repo-check --dangerously-bypass-approvals-and-sandbox -c model=demo
    -c "model_providers.runpod={PROVIDER}" -c model_provider=runpod -c model_context_window=131072)
codex exec "${{options[@]}}" 'Is job 42 done?' || true
codex exec resume "${{options[@]}}" --last 'Go on.' || true
"""
RECORDED = {
    "openai-1": python_client(client_folder("openai-1"), "openai_sdk.py", URL),
    "openai-2": python_client(PYTHON_CLIENTS, "openai_sdk.py", URL),
    "openai-3": python_client(ROOT, "openai_sdk.py", URL),
    "anthropic": python_client(ROOT, "anthropic_sdk.py", URL),
    "langchain": python_client(
        PYTHON_CLIENTS, "python_clients.py", "langchain", URL, environ=ENVIRON
    ),
    "langchain-runpod": python_client(
        PYTHON_CLIENTS, "python_clients.py", "langchain-runpod", URL, environ=ENVIRON
    ),
    "litellm": python_client(PYTHON_CLIENTS, "python_clients.py", "litellm", URL, environ=ENVIRON),
    "instructor": python_client(
        PYTHON_CLIENTS,
        "python_clients.py",
        "instructor",
        URL,
        environ=ENVIRON,
        turns=INSTRUCTOR_TURNS,
    ),
    "openai-agents": python_client(
        client_folder("openai-agents"), "openai_agents.py", URL, turns=VALID_TURNS
    ),
    "ai-sdk": Client(
        ("node", "--input-type=module", "-", URL), npm_folder("node"), program="ai_sdk.mjs"
    ),
    "claude-code": shell_client(
        CLAUDE,
        CLAUDE_TURNS,
        ANTHROPIC_BASE_URL=URL,
        ANTHROPIC_AUTH_TOKEN="any",
        CLAUDE_CODE_MAX_CONTEXT_TOKENS="131072",
        CLAUDE_CODE_MAX_OUTPUT_TOKENS="8192",
        ANTHROPIC_DEFAULT_HAIKU_MODEL="demo",
        # Otherwise the agent also sends requests to its vendor.
        CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
    ),
    "codex": shell_client(CODEX, CODEX_TURNS, OPENAI_API_KEY="any"),
    "llm-engine": python_client(
        client_folder("llm-engine"),
        "llm_engine.py",
        environ={
            "LLM_ENGINE_BASE_PATH": f"{URL}/",
            "SCALE_API_KEY": "any",
            "LLM_ENGINE_DISABLE_VERSION_CHECK": "true",
        },
    ),
}


def record(client: Client) -> list[Request]:
    """Run a client; return its requests, without the long texts of its vendor."""
    text = (SESSIONS / client.program).read_text() if client.program else ""
    with (
        tempfile.TemporaryDirectory() as home,
        recording_server(client.turns, client.plain) as server,
    ):
        environ = {"PATH": os.environ["PATH"], "HOME": home, **client.environ}
        found = {name: value.replace(URL, server.url) for name, value in environ.items()}
        command = [part.replace(URL, server.url) for part in client.command]
        run_client(command, found, client.folder if text else Path(home), text)
        replaced = {home: "/home/user", str(ROOT): "/work"}
        return [Request(one.path, shorten(one.body, replaced)) for one in server.requests]


def main(names: list[str]) -> None:
    for name in names or RECORDED:
        requests = record(RECORDED[name])
        lines = list(encode(requests))
        assert list(decode(lines)) == requests
        (FOLDER / f"{name}.jsonl").write_text("".join(f"{line}\n" for line in lines))
        sys.stdout.write(f"{name}: {len(requests)} requests\n")


if __name__ == "__main__":
    main(sys.argv[1:])
