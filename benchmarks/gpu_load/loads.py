"""The loads, and the bodies of their requests."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_load.pacing import words

# Tokens of a prompt that no other prompt has.
USER_TOKENS = 80
# Placeholder in the template of bodies.
NUMBER = "$NUMBER"
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "description": "Look up a text.",
            "parameters": {"type": "object", "properties": {"text": {"type": "string"}}},
        },
    }
]


@dataclass(frozen=True)
class Load:
    """Callers who each send the next request when the answer to their last one has ended.

    Args:
        streams: Number of callers.
        pace: Tokens per second of each stream.
        tokens: Exact number of tokens of each answer.
        stream: Whether the answers are streamed. Those that aren't start and end together.
        calls_tool: Whether the requests have tools, and the answers call one.
        raw: Whether the worker gets raw jobs, with each token's text, instead of chats.
        common_tokens: Number of tokens that all prompts have in common.
        window_s: Seconds in which the load is measured, after all callers have started.
    """

    streams: int
    pace: float
    tokens: int = 100
    stream: bool = True
    calls_tool: bool = False
    raw: bool = False
    common_tokens: int = 1900
    window_s: float = 10.0

    @property
    def ramp_s(self) -> float:
        """Seconds over which the callers start, so that their answers end one by one."""
        return self.tokens / self.pace if self.stream else 0.0


# Seconds that an answer takes, by the number of streams: with 1,024 streams, answers of a few
# seconds would make the front parse prompts more than anything else.
SECONDS = {64: 4, 128: 6, 256: 10, 1024: 30}
COUNTS, PACES = tuple(SECONDS), (20, 50)


def stream_load(count: int, pace: int) -> str:
    """Return the name of the load with a number of streams at a pace."""
    return f"{count} at {pace}/s"


CEILING = "64 at 500/s"
LOADS = {
    **{
        stream_load(count, pace): Load(count, pace, tokens=SECONDS[count] * pace)
        for pace in PACES
        for count in COUNTS
    },
    "64 with tools at 50/s": Load(64, 50, tokens=200, calls_tool=True),
    "256 with tools at 50/s": Load(256, 50, tokens=500, calls_tool=True),
    "64 raw at 50/s": Load(64, 50, tokens=200, raw=True),
    "256 raw at 50/s": Load(256, 50, tokens=500, raw=True),
    "64 whole at 50/s": Load(64, 50, stream=False),
    # A small model on a fast GPU: the fronts have more to do with requests than with tokens.
    "64 short at 270/s": Load(64, 270, tokens=64, common_tokens=20),
    "64 short whole at 270/s": Load(64, 270, tokens=64, stream=False, common_tokens=20),
    # Answers so long that few requests arrive in the window.
    CEILING: Load(64, 500, tokens=6000),
}
WARM_UP = Load(16, 50, tokens=50, window_s=5.0)


def chat_body(load: Load, name: str, model: Path) -> dict[str, Any]:
    """Return the body of a chat with a served model, whose directory has the words of the prompt.

    The prompt has ``NUMBER`` as a placeholder.
    """
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    texts = [word.replace("Ġ", " ") for word in words(tokenizer["model"]["vocab"])]

    def text(tokens: int) -> str:
        return "".join(texts[number % len(texts)] for number in range(tokens))

    return {
        "model": name,
        "messages": [
            {"role": "system", "content": text(load.common_tokens)},
            {"role": "user", "content": NUMBER + text(USER_TOKENS)},
        ],
        "max_tokens": load.tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": load.stream,
        "vllm_xargs": {"pace": load.pace, "tool": int(load.calls_tool)},
        **({"stream_options": {"include_usage": True}} if load.stream else {}),
        **({"tools": TOOLS} if load.calls_tool else {}),
    }


def job_input(load: Load, body: dict[str, Any]) -> dict[str, Any]:
    """Return the input of the worker's job for a chat."""
    if not load.raw:
        return {"openai_route": "/v1/chat/completions", "openai_input": body}
    # A raw job has no custom arguments: the core reads the pace from its seed.
    params = {key: body[key] for key in ("max_tokens", "ignore_eos", "temperature")}
    params["seed"] = load.pace
    return {"messages": body["messages"], "sampling_params": params, "stream": load.stream}
