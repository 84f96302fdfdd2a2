"""Forms of a job that ``worker-vllm`` documents, and what its README says that they may hold."""

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from support.tables.migration import Verdict

Job = dict[str, Any]
# True if the yields of a job are as they are to be.
Answers = Callable[[Sequence[Any]], bool]

PROMPT = "Once upon a time there was a small worker"
MESSAGES = [{"role": "user", "content": "Count to ten."}]
TALK = [
    {"role": "system", "content": "You are brief."},
    {"role": "user", "content": "Hello!"},
    {"role": "assistant", "content": "Hello."},
    *MESSAGES,
]
SHORT = {"max_tokens": 6, "temperature": 0}

# Of sampling_params, in the order of the README, at the defaults that it names.
DEFAULTS = {
    "n": 1,
    "best_of": 1,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "use_beam_search": False,
    "length_penalty": 1.0,
    "early_stopping": False,
    "stop": None,
    "stop_token_ids": None,
    "ignore_eos": False,
    "max_tokens": 16,
    "skip_special_tokens": True,
    "spaces_between_special_tokens": True,
}
_BEAM = {"use_beam_search": True, "n": 2, "temperature": 0}
# Each with another value, and with what it needs beside it.
CHANGED: tuple[dict[str, Any], ...] = (
    {"n": 2},
    {"best_of": 2},
    {"presence_penalty": 0.5},
    {"frequency_penalty": 0.5},
    {"repetition_penalty": 1.1},
    {"temperature": 0.5},
    {"top_p": 0.9},
    {"top_k": 5},
    {"min_p": 0.1},
    _BEAM,
    {**_BEAM, "length_penalty": 1.2},
    {**_BEAM, "early_stopping": "never"},
    {"stop": ["river"]},
    {"stop_token_ids": [7]},
    {"ignore_eos": True},
    {"max_tokens": 3},
    {"skip_special_tokens": False},
    {"spaces_between_special_tokens": False},
)
# Of chat completions: all that go together.
CHAT = {
    "model": "demo",
    "temperature": 0.5,
    "top_p": 0.9,
    "n": 2,
    "max_tokens": 4,
    "seed": 7,
    "stop": ["river"],
    "presence_penalty": 0.5,
    "frequency_penalty": 0.5,
    "logit_bias": {"7": 1},
    "user": "somebody",
    "best_of": 2,
    "top_k": 5,
    "ignore_eos": True,
    "stop_token_ids": [7],
    "skip_special_tokens": False,
    "spaces_between_special_tokens": False,
    "add_generation_prompt": True,
    "echo": True,
    "repetition_penalty": 1.1,
    "min_p": 0.1,
    "include_stop_str_in_output": True,
}
COMPLETION = {key: CHAT[key] for key in CHAT if key != "add_generation_prompt"} | {"logprobs": 1}

# Keys of a chat's body that are not sampling parameters.
OF_A_CHAT: dict[str, Any] = {
    "response_format": {"type": "json_object"},
    "tools": [],
    "model": "demo",
    "max_completion_tokens": 5,
    "chat_template_kwargs": {},
}


def _raw(chunks: Sequence[Any]) -> bool:
    (whole,) = chunks
    return _tokens(whole) and whole["usage"].keys() == {"input", "output"}


def _tokens(chunk: Any) -> bool:
    return all(len(choice["tokens"]) == 1 for choice in chunk["choices"])


def _up_to_16(chunks: Sequence[Any]) -> bool:
    return _raw(chunks) and chunks[0]["usage"]["output"] == 16


def _sizes(*sizes: int) -> Answers:
    """Return whether a raw stream's chunks have these sizes, and count up what came."""

    def fits(chunks: Sequence[Any]) -> bool:
        counts = [chunk["usage"]["output"] for chunk in chunks]
        tokens = [len(chunk["choices"][0]["tokens"]) for chunk in chunks]
        return tokens == list(sizes) and counts == [sum(sizes[: k + 1]) for k in range(len(sizes))]

    return fits


def _one(kind: str) -> Answers:
    """Return whether there is one body, an object of OpenAI's or Anthropic's."""
    return lambda chunks: (
        len(chunks) == 1
        and kind
        in (
            chunks[0].get("object"),
            chunks[0].get("type"),
        )
    )


def _events(last: str) -> Answers:
    """Return whether all chunks are texts of whole events, and how the last one begins."""

    def fits(chunks: Sequence[Any]) -> bool:
        events = "".join(chunks).strip().split("\n\n")
        return all(chunk.endswith("\n\n") for chunk in chunks) and events[-1].startswith(last)

    return fits


def _thrice(chunks: Sequence[Any]) -> bool:
    """Return whether the text of a completion is a piece three times over."""
    text = chunks[0]["choices"][0]["text"]
    return bool(text) and text == text[: len(text) // 3] * 3


def _decoded(chunks: Sequence[Any]) -> bool:
    return all(event["object"] for chunk in chunks for event in chunk)


def _any(chunks: Sequence[Any]) -> bool:
    return len(chunks) == 1


def refused(chunks: Sequence[Any]) -> str | None:
    """Return the message of a job that failed; None if it did not."""
    error = chunks[-1].get("error") if isinstance(chunks[-1], dict) else None
    message = json.loads(error)["error"]["message"] if error else None
    return message and str(message)


class Row(NamedTuple):
    """Jobs of one form.

    Attributes:
        form: as the page has it.
        differs: for the page; of what is refused it has the message of the first job.
        answers: whether the yields of each job are right.
        settings: of the worker, beside the defaults, with their values.
    """

    form: str
    verdict: Verdict
    jobs: Sequence[Job]
    answers: Answers = _raw
    differs: str = ""
    settings: tuple[tuple[str, str], ...] = ()


def _openai(route: str, **body: Any) -> Job:
    return {"openai_route": route, "openai_input": body}


def _works(form: str, job: Job, answers: Answers = _raw, **others: Any) -> Row:
    return Row(form, Verdict.WORKS, [job], answers, **others)


def _refused(form: str, *jobs: Job) -> Row:
    return Row(form, Verdict.REFUSED, jobs)


_CHAT, _COMPLETIONS = "/v1/chat/completions", "/v1/completions"
_ANSWERED_RAW = (
    "The answer has the raw form, `choices[].tokens` and `usage.input`, as in the in-process"
    " releases. Since July 2026 it was an OpenAI body; send the route to have that"
)

IN_PROCESS = (
    _works("`prompt`", {"prompt": PROMPT, "sampling_params": SHORT}),
    _works(
        "`prompt` with `apply_chat_template`",
        {"prompt": "Hello!", "apply_chat_template": True, "sampling_params": SHORT},
    ),
    _works("`messages`", {"messages": TALK, "sampling_params": SHORT}),
    _works(
        "`messages` and `prompt`: the messages win",
        {"messages": MESSAGES, "prompt": PROMPT, "sampling_params": {**SHORT, "max_tokens": 20}},
        lambda chunks: _raw(chunks) and "two" in chunks[0]["choices"][0]["tokens"][0],
    ),
    _works(
        '`"stream": true`: chunks of 1, 3, 9, 27, 50 tokens',
        {
            "prompt": PROMPT,
            "stream": True,
            "sampling_params": {"max_tokens": 60, "temperature": 0, "ignore_eos": True},
        },
        _sizes(1, 3, 9, 27, 20),
    ),
    _works(
        "`max_batch_size`, `min_batch_size`, `batch_size_growth_factor` in the job",
        {
            "prompt": PROMPT,
            "stream": True,
            "max_batch_size": 4,
            "min_batch_size": 2,
            "batch_size_growth_factor": 2,
            "sampling_params": {"max_tokens": 12, "temperature": 0},
        },
        _sizes(2, 4, 4, 2),
    ),
    Row(
        f"`sampling_params`: {len(DEFAULTS)} documented ones, at their defaults and with others",
        Verdict.WORKS,
        [
            {"prompt": PROMPT, "sampling_params": params}
            for params in (DEFAULTS, *({"max_tokens": 4, **changed} for changed in CHANGED))
        ],
    ),
    Row(
        "no `max_tokens`",
        Verdict.DIFFERS,
        [{"prompt": PROMPT}, {"messages": MESSAGES}],
        _up_to_16,
        "16 tokens, as in 1.0; later in-process releases gave 100, and since July 2026 a chat went"
        " on to its end. `DEFAULT_MAX_TOKENS=100` brings the 100 back",
    ),
    Row(
        "`stop` beside `stop_token_ids`",
        Verdict.DIFFERS,
        [{"prompt": PROMPT, "sampling_params": {"stop": ["xyz"], "stop_token_ids": [301]}}],
        _raw,
        "The text ends before the stop token, too; `include_stop_str_in_output` keeps both",
    ),
    Row(
        "`best_of` or `use_beam_search` with `stream`",
        Verdict.DIFFERS,
        [
            {"prompt": PROMPT, "stream": True, "sampling_params": {"max_tokens": 4, **ranked}}
            for ranked in ({"best_of": 2}, _BEAM)
        ],
        lambda chunks: len(chunks) == 1,
        "One chunk, since the answers have to be compared first",
    ),
    Row(
        "`messages: null` beside a `prompt`",
        Verdict.DIFFERS,
        [{"messages": None, "prompt": PROMPT, "sampling_params": SHORT}],
        _raw,
        "null counts as absent, so the prompt is answered",
    ),
    _refused(
        "`early_stopping: true`",
        {"prompt": PROMPT, "sampling_params": {**_BEAM, "early_stopping": True}},
    ),
    _refused(
        "`length_penalty` or `early_stopping` without beam search",
        {"prompt": PROMPT, "sampling_params": {"length_penalty": 1.2}},
        {"prompt": PROMPT, "sampling_params": {"early_stopping": "never"}},
    ),
    _refused(
        "`n` above 1 with `temperature` 0",
        {"prompt": PROMPT, "sampling_params": {"n": 2, "temperature": 0}},
    ),
    _refused("a `temperature` above 2", {"prompt": PROMPT, "sampling_params": {"temperature": 3}}),
    _refused("an `n` above 256", {"prompt": PROMPT, "sampling_params": {"n": 257}}),
    _refused("numbers as text", {"prompt": PROMPT, "max_batch_size": "4"}),
    _refused("booleans as text", {"prompt": PROMPT, "stream": "true"}),
    _refused("unknown keys, which were ignored", {"prompt": PROMPT, "max_tokens": 5}),
    _refused(
        "unknown keys of `sampling_params`",
        {"prompt": PROMPT, "sampling_params": {"max_new_tokens": 5}},
    ),
    _refused("`use_openai_format`", {"messages": MESSAGES, "use_openai_format": True}),
    _refused("an empty input", {}),
)
GATEWAY = (
    _works("`/v1/models`", {"openai_route": "/v1/models"}, _one("list")),
    _works(
        "a GET with an empty `openai_input`",
        {"openai_route": "/v1/models", "openai_input": {}},
        _one("list"),
    ),
    _works("`/v1/chat/completions`", _openai(_CHAT, messages=TALK), _one("chat.completion")),
    _works(
        "`/v1/chat/completions` with `stream`",
        _openai(_CHAT, messages=MESSAGES, stream=True, **SHORT),
        _events("data: [DONE]"),
    ),
    _works(
        "`messages` that are a string",
        _openai(_CHAT, messages="Count to ten.", **SHORT),
        _one("chat.completion"),
    ),
    Row(
        f"a chat's {len(CHAT) + 4} documented parameters",
        Verdict.WORKS,
        [
            _openai(_CHAT, messages=MESSAGES, **CHAT),
            _openai(_CHAT, messages=MESSAGES, max_tokens=4, length_penalty=1.2, **_BEAM),
        ],
        _one("chat.completion"),
    ),
    Row(
        "`/v1/completions`: a text, texts, tokens, lists of tokens",
        Verdict.WORKS,
        [
            _openai(_COMPLETIONS, prompt=prompt, **SHORT)
            for prompt in (PROMPT, [PROMPT, PROMPT], [5, 6, 7], [[5, 6], [7]])
        ],
        _one("text_completion"),
    ),
    _works(
        "`/v1/completions` with `stream`",
        _openai(_COMPLETIONS, prompt=PROMPT, stream=True, **SHORT),
        _events("data: [DONE]"),
    ),
    Row(
        f"a completion's {len(COMPLETION) + 4} documented parameters",
        Verdict.WORKS,
        [
            _openai(_COMPLETIONS, prompt=PROMPT, **COMPLETION),
            _openai(_COMPLETIONS, prompt=PROMPT, max_tokens=4, length_penalty=1.2, **_BEAM),
        ],
        _one("text_completion"),
    ),
    _works(
        "`/v1/responses`",
        _openai("/v1/responses", input="Hello!", max_output_tokens=4),
        _one("response"),
    ),
    _works(
        "`/v1/responses` with `stream`",
        _openai("/v1/responses", input="Hello!", max_output_tokens=4, stream=True),
        _events("event: response."),
    ),
    _works(
        "`/v1/messages`",
        _openai("/v1/messages", messages=MESSAGES, max_tokens=4),
        _one("message"),
    ),
    _works(
        "`/v1/messages` with `stream`",
        _openai("/v1/messages", messages=MESSAGES, max_tokens=4, stream=True),
        _events("event: message_stop"),
    ),
    _works(
        "a stream with `RAW_OPENAI_OUTPUT=0`: lists of decoded events",
        _openai(_CHAT, messages=MESSAGES, stream=True, **SHORT),
        _decoded,
        settings=(("RAW_OPENAI_OUTPUT", "0"),),
    ),
    Row(
        "chunk keys beside `openai_input`",
        Verdict.DIFFERS,
        [
            {
                **_openai(_COMPLETIONS, prompt=PROMPT, stream=True, max_tokens=20, temperature=0),
                "max_batch_size": 1,
            }
        ],
        lambda chunks: all(chunk.count("data: ") == 1 for chunk in chunks),
        "They hold on this path, too; there only the settings did. An event counts as one token",
    ),
    _works("no `model`", _openai(_CHAT, messages=MESSAGES, **SHORT), _one("chat.completion")),
    Row(
        "`logit_bias`",
        Verdict.DIFFERS,
        [_openai(_COMPLETIONS, prompt=PROMPT, max_tokens=3, logit_bias={"7": 100})],
        _thrice,
        "It has its effect; 1.0 had none",
    ),
    Row(
        "keys that vLLM does not know",
        Verdict.DIFFERS,
        [_openai(_CHAT, messages=MESSAGES, nonsense=1, **SHORT)],
        _one("chat.completion"),
        "They have no effect, and the log says so; `STRICT_REQUESTS=1` refuses them",
    ),
    _refused(
        "`suffix`, with a model that fills no gaps",
        _openai(_COMPLETIONS, prompt=PROMPT, suffix="."),
    ),
    _refused(
        "`best_of` or `use_beam_search` with `stream`",
        _openai(_COMPLETIONS, prompt=PROMPT, stream=True, best_of=2),
        _openai(_CHAT, messages=MESSAGES, stream=True, **_BEAM),
    ),
    _refused(
        "`n` above 1 with `temperature` 0 on this path",
        _openai(_CHAT, messages=MESSAGES, n=2, temperature=0),
    ),
    _refused("a `model` that is not served", _openai(_CHAT, messages=MESSAGES, model="gpt-4")),
)
SINCE_JULY_2026 = (
    _works(
        "`route`, `method`, `body`",
        {"route": _CHAT, "method": "POST", "body": {"messages": MESSAGES, **SHORT}},
        _one("chat.completion"),
    ),
    _works(
        "`route` and `body`; the method in small letters",
        {"route": _COMPLETIONS, "method": "post", "body": {"prompt": PROMPT, **SHORT}},
        _one("text_completion"),
    ),
    Row(
        "`route` alone: `/v1/models`, `/health`, `/version`, `/metrics`",
        Verdict.WORKS,
        [{"route": route} for route in ("/v1/models", "/health", "/version", "/metrics")],
        _any,
    ),
    Row(
        "`/tokenize` and `/detokenize`",
        Verdict.WORKS,
        [
            {"route": "/tokenize", "body": {"prompt": PROMPT}},
            {"route": "/detokenize", "body": {"tokens": [5, 6, 7]}},
        ],
        _any,
    ),
    Row(
        "`stream` in the `body`",
        Verdict.DIFFERS,
        [{"route": _CHAT, "body": {"messages": MESSAGES, "stream": True, **SHORT}}],
        _events("data: [DONE]"),
        "Each chunk holds whole events; there it held what one read from the socket gave",
    ),
    Row(
        "`prompt` or `messages`, answered",
        Verdict.DIFFERS,
        [
            {"prompt": PROMPT, "sampling_params": SHORT},
            {"messages": MESSAGES, "sampling_params": SHORT},
        ],
        _raw,
        _ANSWERED_RAW,
    ),
    _refused(
        "other keys of a chat's body in `sampling_params`, such as `response_format`",
        *(
            {"messages": MESSAGES, "sampling_params": {key: held}}
            for key, held in OF_A_CHAT.items()
        ),
    ),
    _refused(
        "`openai_input` without `openai_route`", {"openai_input": {"messages": MESSAGES, **SHORT}}
    ),
    _refused(
        "vLLM's routes that need another model: `/v1/embeddings`, `/score`, `/rerank`, `/pooling`",
        *(
            {"route": route, "body": {"input": PROMPT}}
            for route in ("/v1/embeddings", "/score", "/rerank", "/pooling")
        ),
    ),
    _refused(
        "other routes of its server: `/classify`, `/v1/audio/transcriptions`, `/invocations`,"
        " `/v1/load_lora_adapter`, `/inference/v1/generate`, `/docs`, `/load`, `/ping`",
        *(
            {"route": route, "body": {"input": PROMPT}}
            for route in (
                "/classify",
                "/v1/audio/transcriptions",
                "/invocations",
                "/v1/load_lora_adapter",
                "/inference/v1/generate",
            )
        ),
        *({"route": route} for route in ("/docs", "/load", "/ping")),
    ),
)
TABLES = {
    "raw job": IN_PROCESS,
    "job of the gateway": GATEWAY,
    "job since July 2026": SINCE_JULY_2026,
}
