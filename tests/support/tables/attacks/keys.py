"""Keys that reach what no caller may: connectors, templates, adapters, other routes, names."""

from functools import partial
from typing import Any

from support.tables.attacks.row import (
    ANSWERED,
    CANARY,
    EITHER,
    HELLO,
    PORT,
    REFUSED,
    Attack,
    Body,
    anthropic,
    chat,
    completion,
    engine,
    gateway,
    params,
    raw,
    responses,
    route,
    tokenize,
    user,
)

KV = {"remote_host": "127.0.0.1", "remote_port": 1, "do_remote_prefill": True}


def adapter(name: str, path: str = "/v1/unload_lora_adapter", **keys: Any) -> Body:
    return {"route": path, "method": "POST", "body": {"lora_name": name, **keys}}


KEYS = [
    Attack(
        "kv_transfer_params in vllm_xargs (chat)",
        lambda: chat(vllm_xargs={"kv_transfer_params": "x"}),
        harmful=True,
    ),
    Attack(
        "kv_transfer_params in vllm_xargs (completions)",
        lambda: completion(vllm_xargs={"kv_transfer_params": "x"}),
        harmful=True,
    ),
    Attack(
        "kv_transfer_params in vllm_xargs (responses)",
        lambda: responses(vllm_xargs={"kv_transfer_params": "x"}),
        harmful=True,
    ),
    Attack(
        "ec_transfer_params in vllm_xargs (chat)",
        lambda: chat(vllm_xargs={"ec_transfer_params": "x"}),
        harmful=True,
    ),
    Attack("an unknown vllm_xargs (chat)", lambda: chat(vllm_xargs={"anything": 1}), EITHER),
    Attack(
        "vllm_xargs of 60,000 (chat)",
        lambda: chat(vllm_xargs={f"k{i}": "v" for i in range(60_000)}),
    ),
    Attack(
        "vllm_xargs with a list (completions)",
        lambda: completion(vllm_xargs={"kv_transfer_params": ["x"]}),
    ),
    Attack("kv_transfer_params (chat)", lambda: chat(kv_transfer_params=KV)),
    Attack("kv_transfer_params (responses)", lambda: responses(kv_transfer_params=KV), EITHER),
    Attack(
        "kv_transfer_params among template arguments (chat)",
        lambda: chat(chat_template_kwargs={"kv_transfer_params": KV}),
    ),
    Attack("kv_transfer_params (messages)", lambda: anthropic(kv_transfer_params=KV)),
    Attack("extra_args (raw)", lambda: params(extra_args={"kv_transfer_params": KV})),
    Attack("extra_args (chat)", lambda: chat(extra_args={"kv_transfer_params": KV}), EITHER),
    Attack("extra_body (chat)", lambda: chat(extra_body={"kv_transfer_params": KV}), EITHER),
    Attack("output_kind (raw)", lambda: params(output_kind=1)),
    Attack("_all_stop_token_ids (raw)", lambda: params(_all_stop_token_ids=[1])),
    Attack("_eos_token_id (raw)", lambda: params(_eos_token_id=1)),
    Attack("__class__ (raw)", lambda: params(__class__="x")),
    Attack("logits_processors (raw)", lambda: params(logits_processors=["os.system"])),
    Attack("logits_processors (chat)", lambda: chat(logits_processors=["os.system"]), EITHER),
    Attack(
        "logits_processors by name (completions)",
        lambda: completion(logits_processors=[{"qualname": "os.system", "args": ["true"]}]),
        EITHER,
    ),
    Attack("request_id (chat)", lambda: chat(request_id="../" * 20)),
    Attack("request_id (responses)", lambda: responses(request_id="x"), EITHER),
    Attack("priority (chat)", lambda: chat(priority=-(2**31)), EITHER),
    Attack("priority of 2**64 (chat)", lambda: chat(priority=2**64)),
    Attack("priority (raw)", lambda: raw(priority=-1)),
    Attack("cache_salt of 1 MB (chat)", lambda: chat(cache_salt="s" * 1_000_000), EITHER),
    Attack("cache_salt, empty (chat)", lambda: chat(cache_salt=""), EITHER),
    Attack("data_parallel_rank (chat)", lambda: chat(data_parallel_rank=7), EITHER),
    Attack(
        "return_tokens_as_token_ids (completions)",
        lambda: completion(return_tokens_as_token_ids=True, logprobs=2),
        EITHER,
    ),
    Attack("include_reasoning (chat)", lambda: chat(include_reasoning={"a": 1})),
    Attack("structured_outputs is a list (chat)", lambda: chat(structured_outputs=[1])),
    Attack(
        "stream_options without stream (chat)",
        lambda: chat(stream_options={"include_usage": True}),
        EITHER,
    ),
    Attack(
        "a refused stream (chat)",
        lambda: chat(stream=True, logprobs=True, top_logprobs=50, messages=user(CANARY)),
        harmful=True,
    ),
    Attack(
        "a refused stream (completions)",
        lambda: completion(stream=True, logprobs=50, prompt=CANARY),
        harmful=True,
    ),
    Attack(
        "a refused stream with a bad id (completions)",
        lambda: completion(stream=True, prompt=[2**30]),
        harmful=True,
    ),
    Attack(
        "a refused stream with a bad format (chat)",
        lambda: chat(
            stream=True,
            response_format={
                "type": "json_schema",
                "json_schema": {"name": CANARY, "schema": {"$ref": "#/none"}},
            },
        ),
    ),
    Attack(
        "a refused stream (responses)",
        lambda: responses(
            stream=True,
            input=CANARY,
            text={"format": {"type": "json_schema", "name": CANARY, "schema": {"$ref": "#/none"}}},
        ),
    ),
    Attack(
        "a refused stream (messages)",
        lambda: anthropic(stream=True, messages=user(CANARY * 10_000)),
    ),
    Attack(
        "a stream that is too long (chat)",
        lambda: chat(stream=True, messages=user(CANARY * 10_000)),
    ),
    Attack("a stream of an unknown model (chat)", lambda: chat(stream=True, model=CANARY)),
    Attack(
        "an unknown name of 1 MB (chat)",
        lambda: chat(**{"n" * 1_000_000 + CANARY: 1}),
        EITHER,
        harmful=True,
    ),
    Attack(
        "an unknown name of 1 MB (completions)",
        lambda: completion(**{"n" * 1_000_000 + CANARY: 1}),
        EITHER,
        harmful=True,
    ),
    Attack(
        "an unknown name with line breaks (chat)", lambda: chat(**{"a\nERROR forged": 1}), EITHER
    ),
    Attack(
        "an unknown name of half a surrogate pair (chat)", lambda: chat(**{"\ud800": 1}), EITHER
    ),
    Attack("a name with NUL (raw)", lambda: raw(**{"\x00": 1})),
    Attack("LLM Engine with sampling_params", lambda: engine(sampling_params={"seed": 2**63})),
    Attack("LLM Engine with a backend", lambda: engine(guided_decoding_backend="outlines")),
    Attack("a format that is none", lambda: raw(format="x")),
]

OWN_PROMPT = ("documents", "continue_final_message", "bos_token")

TEMPLATES = [
    Attack(
        "300,000 template arguments (chat)",
        lambda: chat(chat_template_kwargs={f"k{i}": i for i in range(300_000)}),
        harmful=True,
    ),
    Attack(
        "300,000 template arguments (raw)",
        lambda: raw(
            messages=HELLO, prompt=None, chat_template_kwargs={f"k{i}": i for i in range(300_000)}
        ),
        harmful=True,
    ),
    Attack(
        "30,000 template arguments (tokenize)",
        lambda: tokenize(messages=HELLO, chat_template_kwargs={f"k{i}": i for i in range(30_000)}),
    ),
    Attack(
        "30,000 template arguments (messages)",
        lambda: anthropic(chat_template_kwargs={f"k{i}": i for i in range(30_000)}),
        EITHER,
    ),
    *(
        Attack(
            f"the template argument {name} ({where})",
            partial(make, chat_template_kwargs={name: value}),
            # They change the caller's own prompt, and nothing else.
            ANSWERED if name in OWN_PROMPT else REFUSED,
            harmful=name in ("tokenizer", "model_config"),
        )
        for where, make in (("chat", chat), ("raw", partial(raw, messages=HELLO, prompt=None)))
        for name, value in {
            "tokenizer": "x",
            "model_config": {},
            "chat_template": "{% for i in range(10**9) %}{% endfor %}",
            "conversation": [],
            "messages": [{"role": "user", "content": "{{ 1/0 }}"}],
            "tools": [{}] * 100,
            "tokenize": True,
            "return_tensors": "pt",
            "padding": "max_length",
            "max_length": 10**9,
            "return_dict": True,
            "trust_remote_code": True,
            "documents": [{"title": "a", "text": "b"}],
            "continue_final_message": True,
            "self": 1,
            "": 1,
            "strftime_now": "x",
            "raise_exception": 1,
            "bos_token": "a" * 100_000,
        }.items()
    ),
    Attack("a template (chat)", lambda: chat(chat_template="{{ 1/0 }}")),
    Attack("a template (tokenize)", lambda: tokenize(messages=HELLO, chat_template="{{ 1/0 }}")),
    Attack("a template (raw)", lambda: raw(chat_template="{{ 1/0 }}")),
    Attack("a template (messages)", lambda: anthropic(chat_template="{{ 1/0 }}"), EITHER),
    Attack(
        "a template in vllm_xargs (chat)",
        lambda: chat(vllm_xargs={"chat_template": "{{ 1/0 }}"}),
        EITHER,
    ),
    Attack("template arguments are a list (chat)", lambda: chat(chat_template_kwargs=[1])),
    Attack("documents of 100 KB (chat)", lambda: chat(documents=[{"text": "a" * 100_000}]), EITHER),
    Attack(
        "a template in a message (chat)",
        lambda: chat(messages=user("{{ cycler.__init__.__globals__ }}")),
        EITHER,
    ),
]

NAMES = [
    Attack("an adapter is unloaded", lambda: adapter("a"), harmful=True),
    Attack(
        "an adapter is unloaded through the gateway",
        lambda: gateway("/v1/unload_lora_adapter", lora_name="a"),
        harmful=True,
    ),
    Attack("an adapter is unloaded by a path", lambda: adapter("../../etc")),
    Attack("an adapter is loaded", lambda: adapter("a", "/v1/load_lora_adapter", lora_path="/etc")),
    Attack("an adapter named by a path (raw)", lambda: raw(lora="../../../etc/passwd")),
    Attack("an adapter named by an absolute path (chat)", lambda: chat(model="/etc/passwd")),
    Attack("a model named by an address (chat)", lambda: chat(model=f"http://127.0.0.1:{PORT}/x")),
    Attack("a model with NUL (chat)", lambda: chat(model="demo\x00")),
    Attack("a model that is a list (chat)", lambda: chat(model=["demo"])),
    Attack("a model that is a number (raw)", lambda: raw(model=5)),
    Attack(
        "a fine-tune's suffix of a path (job)",
        lambda: {"fine_tune": {"rows": [{"prompt": "a", "response": "b"}], "suffix": "../x"}},
    ),
    Attack(
        "a fine-tune's suffix of a path",
        lambda: route("/v1/fine_tuning/jobs", model="demo", training_file="file-a", suffix="../x"),
    ),
    *(
        Attack(f"the route {path[:40]} ({method})", partial(dict, route=path, method=method))
        for path, method in (
            ("/v1/load_lora_adapter", "POST"),
            ("/sleep", "POST"),
            ("/reset_prefix_cache", "POST"),
            ("/inference/v1/generate", "POST"),
            ("/inference/v1/abort_requests", "POST"),
            ("/invocations", "POST"),
            ("/collective_rpc", "POST"),
            ("/server_info", "GET"),
            ("/docs", "GET"),
            ("/v1/../metrics/../sleep", "POST"),
            ("/v1/chat/completions/../../../sleep", "POST"),
            ("/v1%2fmodels", "PUT"),
            ("//v1//models", "POST"),
            ("http://127.0.0.1/v1/models", "GET"),
            ("/v1/chat/completions", "DELETE"),
            ("/v1/models", "POST"),
            ("/v1/audio/transcriptions", "POST"),
            ("/v1/responses/resp_1", "GET"),
            ("/v1/responses/resp_1/cancel", "POST"),
            ("/v1/chat/completions\x00", "POST"),
            ("/v1/models/../../etc/passwd", "GET"),
            ("", "GET"),
            ("/" * 10_000, "GET"),
            ("/v1/models?" + "a" * 10_000, "POST"),
            ("%" * 1000, "GET"),
        )
    ),
    Attack("a route that is a list", lambda: {"route": ["/v1/models"]}),
    Attack("a body that is a list", lambda: {"route": "/v1/chat/completions", "body": [1]}),
    Attack("no body", lambda: {"route": "/v1/chat/completions", "method": "POST"}),
    Attack(
        "both names of the route",
        lambda: {"route": "/v1/models", "openai_route": "/sleep", "openai_input": {}},
        EITHER,
    ),
]
