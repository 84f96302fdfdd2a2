"""Texts that are long, and short ones that a careless expression reads for minutes."""

from support.tables.attacks.row import (
    ANSWERED,
    CANARY,
    EITHER,
    HELLO,
    Attack,
    Body,
    anthropic,
    chat,
    completion,
    count_tokens,
    detokenize,
    engine,
    gateway,
    params,
    raw,
    responses,
    tokenize,
    user,
)


def words(kilobytes: int) -> str:
    return "five " * (kilobytes * 200)


def named(name: str, **keys: str) -> list[Body]:
    return [{"type": "function", "function": {"name": name, "parameters": {}, **keys}}]


def chosen(name: str) -> Body:
    return {"type": "function", "function": {"name": name}}


SLASHES, PARAMETERS = "/a" * 8_000, " (parameter=a, value=" * 4_000

NAMES = [
    Attack(
        "a tool's name of slashes, chosen (chat)",
        lambda: chat(tools=named(SLASHES), tool_choice=chosen(SLASHES)),
        harmful=True,
    ),
    Attack(
        "a chosen name of slashes that no tool has (chat)",
        lambda: chat(tools=named("f"), tool_choice=chosen(SLASHES)),
        harmful=True,
    ),
    Attack(
        "a tool's name of slashes, in a stream (chat)",
        lambda: chat(tools=named(SLASHES), tool_choice=chosen(SLASHES), stream=True),
        harmful=True,
    ),
    Attack(
        "a tool's name of parameters (chat)",
        lambda: chat(tools=named(PARAMETERS), tool_choice=chosen(PARAMETERS)),
        harmful=True,
    ),
    Attack(
        "a tool's name of slashes (responses)",
        lambda: responses(
            tools=[{"type": "function", "name": SLASHES, "parameters": {}}],
            tool_choice={"type": "function", "name": SLASHES},
        ),
    ),
    Attack(
        "a tool's name of slashes (messages)",
        lambda: anthropic(
            tools=[{"name": SLASHES, "input_schema": {}}],
            tool_choice={"type": "tool", "name": SLASHES},
        ),
    ),
    Attack(
        "a tool's name of slashes (tokenize)",
        lambda: tokenize(messages=HELLO, tools=named(SLASHES)),
        EITHER,
    ),
    Attack(
        "a tool's name of 65 letters (chat)",
        lambda: chat(tools=named("a" * 65), tool_choice=chosen("a" * 65)),
        EITHER,
    ),
    Attack(
        "an empty tool's name (chat)", lambda: chat(tools=named(""), tool_choice=chosen("")), EITHER
    ),
    Attack(
        "a tool's name with line breaks (chat)",
        lambda: chat(tools=named("a\n\nb\x00c"), tool_choice=chosen("a\n\nb\x00c")),
        EITHER,
    ),
    Attack("a tool choice of slashes (chat)", lambda: chat(tools=named("f"), tool_choice=SLASHES)),
    Attack("a model of slashes (chat)", lambda: chat(model=SLASHES)),
    Attack("a model of slashes (completions)", lambda: completion(model=SLASHES)),
    Attack("a model of slashes (messages)", lambda: anthropic(model=SLASHES)),
    Attack("a model of slashes (responses)", lambda: responses(model=SLASHES)),
    Attack("a model of slashes (raw)", lambda: raw(model=SLASHES)),
    Attack("an adapter of slashes (raw)", lambda: raw(lora=SLASHES)),
    Attack(
        "a role of slashes (chat)",
        lambda: chat(messages=[{"role": SLASHES, "content": "Hi"}]),
        EITHER,
    ),
    Attack(
        "a role of slashes (raw)",
        lambda: raw(prompt=None, messages=[{"role": SLASHES, "content": "Hi"}]),
        EITHER,
    ),
    Attack("a part's type of slashes (chat)", lambda: chat(messages=user([{"type": SLASHES}]))),
    Attack("a part's type of slashes (raw)", lambda: {"messages": user([{"type": SLASHES}])}),
    Attack("a format's type of slashes (chat)", lambda: chat(response_format={"type": SLASHES})),
    Attack(
        "a schema's reference of slashes (chat)",
        lambda: chat(
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": {"$ref": "#" + SLASHES}},
            }
        ),
    ),
    Attack(
        "a schema's name of slashes (chat)",
        lambda: chat(
            response_format={
                "type": "json_schema",
                "json_schema": {"name": SLASHES, "schema": {"type": "none"}},
            }
        ),
        EITHER,
    ),
    Attack(
        "a schema's type of slashes (raw)", lambda: params(guided_json={"type": SLASHES}), EITHER
    ),
    Attack(
        "an expression of slashes with a mistake (raw)",
        lambda: params(guided_regex="/a" * 4_900 + "("),
    ),
    Attack(
        "a grammar of slashes with a mistake (raw)",
        lambda: params(guided_grammar="/a" * 20_000 + "("),
    ),
    Attack(
        "a template's argument of slashes (chat)",
        lambda: chat(chat_template_kwargs={SLASHES: 1}),
        EITHER,
    ),
    Attack("an unknown key of slashes (raw)", lambda: raw(**{SLASHES: 1})),
    Attack("an unknown key of slashes (chat)", lambda: chat(**{SLASHES: 1}), EITHER),
    Attack("an unknown sampling parameter of slashes (raw)", lambda: params(**{SLASHES: 1})),
    Attack("a route of slashes", lambda: {"route": "/v1" + SLASHES, "method": "POST", "body": {}}),
    Attack("a method of slashes", lambda: {"route": "/v1/models", "method": SLASHES}),
    Attack(
        "a tool call's name of slashes in a message (chat)",
        lambda: chat(
            messages=[
                *HELLO,
                {
                    "role": "assistant",
                    "tool_calls": [
                        {
                            "id": "1",
                            "type": "function",
                            "function": {"name": SLASHES, "arguments": SLASHES},
                        }
                    ],
                },
            ]
        ),
        EITHER,
    ),
    Attack(
        "a tool call's arguments of parameters (chat)",
        lambda: chat(
            messages=[
                *HELLO,
                {
                    "role": "assistant",
                    "tool_calls": [
                        {
                            "id": "1",
                            "type": "function",
                            "function": {"name": "f", "arguments": PARAMETERS},
                        }
                    ],
                },
            ]
        ),
        EITHER,
    ),
    Attack(
        "previous_response_id of slashes (responses)",
        lambda: responses(previous_response_id=SLASHES),
    ),
    Attack("a truncation of parameters (responses)", lambda: responses(truncation=PARAMETERS)),
    Attack("a reasoning effort of parameters (chat)", lambda: chat(reasoning_effort=PARAMETERS)),
    Attack("a service tier of slashes (chat)", lambda: chat(service_tier=SLASHES), EITHER),
    Attack("a user of slashes (chat)", lambda: chat(user=SLASHES), ANSWERED),
]

# Far more than the context holds, behind whatever keeps a length check from seeing it.
LONG = [
    Attack(
        "5 MB, cut to 10 tokens (completions)",
        lambda: completion(prompt=words(5_000), truncate_prompt_tokens=10),
        ANSWERED,
        harmful=True,
    ),
    Attack(
        "3 MB, cut to 10 tokens (chat)",
        lambda: chat(messages=user(words(3_000)), truncate_prompt_tokens=10),
        harmful=True,
    ),
    Attack(
        "3 MB, cut to the context (completions)",
        lambda: completion(prompt=words(3_000), truncate_prompt_tokens=-1),
        ANSWERED,
        harmful=True,
    ),
    Attack(
        "3 MB with token strings (tokenize)",
        lambda: tokenize(prompt=words(3_000), return_token_strs=True),
        harmful=True,
    ),
    Attack("3 MB (tokenize)", lambda: tokenize(prompt=words(3_000)), harmful=True),
    Attack(
        "3 MB as a conversation (tokenize)",
        lambda: tokenize(messages=user(words(3_000))),
        harmful=True,
    ),
    Attack("900 KB (chat)", lambda: chat(messages=user(words(900))), harmful=True),
    Attack("900 KB (raw)", lambda: raw(prompt=words(900)), harmful=True),
    Attack("900 KB (completions)", lambda: completion(prompt=words(900)), harmful=True),
    Attack("900 KB (responses)", lambda: responses(input=words(900)), harmful=True),
    Attack("900 KB (messages)", lambda: anthropic(messages=user(words(900))), harmful=True),
    Attack("900 KB (count_tokens)", lambda: count_tokens(messages=user(words(900))), harmful=True),
    Attack(
        "500 prompts of 10 KB",
        lambda: {"prompts": [words(10)] * 500, "sampling_params": {"max_tokens": 1}},
        EITHER,
        harmful=True,
    ),
    Attack(
        "500 prompts of 10 KB (completions)", lambda: completion(prompt=[words(10)] * 500), EITHER
    ),
    Attack(
        "500 conversations of 10 KB",
        lambda: {"messages_list": [user(words(10))] * 500, "sampling_params": {"max_tokens": 1}},
        EITHER,
    ),
    Attack("900 KB, templated (raw)", lambda: raw(prompt=words(900), apply_chat_template=True)),
    Attack("900 KB in 900 messages (raw)", lambda: {"messages": user(words(1)) * 900}),
    Attack("900 KB in 900 messages (chat)", lambda: chat(messages=user(words(1)) * 900)),
    Attack(
        "900 KB in parts (chat)",
        lambda: chat(messages=user([{"type": "text", "text": words(1)}] * 900)),
    ),
    Attack("900 KB in the system prompt (messages)", lambda: anthropic(system=words(900))),
    Attack("900 KB of instructions (responses)", lambda: responses(instructions=words(900))),
    Attack(
        "900 KB in a tool's description (chat)",
        lambda: chat(tools=named("f", description=words(900))),
        EITHER,
    ),
    Attack(
        "900 KB in a tool's description (raw)",
        lambda: raw(prompt=None, messages=HELLO, tools=named("f", description=words(900))),
        EITHER,
    ),
    Attack(
        "900 KB in a tool's description (messages)",
        lambda: anthropic(
            tools=[{"name": "f", "description": words(900), "input_schema": {"type": "object"}}]
        ),
        EITHER,
    ),
    Attack(
        "900 KB in a message's name (chat)",
        lambda: chat(messages=user("Hi", name=words(900))),
        EITHER,
    ),
    Attack(
        "900 KB in a template's argument (chat)",
        lambda: chat(chat_template_kwargs={"enable_thinking": words(900)}),
        EITHER,
    ),
    Attack("900 KB for LLM Engine", lambda: engine(prompt=words(900))),
    Attack(
        "900 KB through the gateway",
        lambda: gateway("/v1/completions", prompt=words(900), max_tokens=1),
    ),
    Attack("900 KB without a space (raw)", lambda: raw(prompt="a" * 900_000)),
    Attack("900 KB without a space (tokenize)", lambda: tokenize(prompt="a" * 900_000)),
    Attack("900 KB of line breaks (completions)", lambda: completion(prompt="\n" * 900_000)),
    Attack("900 KB of zero-width joiners (chat)", lambda: chat(messages=user("\u200d" * 300_000))),
    Attack(
        "900 KB of stacked accents (chat)", lambda: chat(messages=user("e" + "\u0301" * 450_000))
    ),
    Attack(
        "900 KB of the model's own marks (chat)",
        lambda: chat(messages=user("<|im_start|>" * 75_000)),
    ),
    Attack(
        "900 KB, cut, as a prompt of a list (completions)",
        lambda: completion(prompt=[words(450)] * 2, truncate_prompt_tokens=5),
        ANSWERED,
    ),
    Attack(
        "900 KB, cut from the left (completions)",
        lambda: completion(prompt=words(900), truncate_prompt_tokens=5, truncation_side="left"),
        ANSWERED,
    ),
    Attack(
        "3 MB, cut (responses)", lambda: responses(input=words(3_000), truncation="auto"), EITHER
    ),
    Attack("a suffix of 900 KB (completions)", lambda: completion(suffix=words(900)), EITHER),
    Attack(
        "60 KB five times over at once (chat)",
        lambda: chat(messages=user(f"{CANARY} {words(60)}")),
        times=8,
    ),
    Attack(
        "60 KB a dozen times at once (tokenize)",
        lambda: tokenize(prompt=f"{CANARY} {words(60)}"),
        EITHER,
        times=12,
    ),
    Attack("300,000 token ids (detokenize)", lambda: detokenize(tokens=[5] * 300_000), EITHER),
    Attack(
        "token ids beyond the vocabulary (detokenize)",
        lambda: detokenize(tokens=[2**31, 2**40]),
        EITHER,
    ),
    Attack("token ids below 0 (detokenize)", lambda: detokenize(tokens=[-1]), EITHER),
    Attack("token ids of 2**64 (detokenize)", lambda: detokenize(tokens=[2**64]), EITHER),
    Attack("1,000,000 token ids (raw)", lambda: raw(prompt=[5] * 1_000_000)),
    Attack("1,000,000 token ids (completions)", lambda: completion(prompt=[5] * 1_000_000)),
    Attack(
        "300 lists of 3,000 token ids (completions)", lambda: completion(prompt=[[5] * 3_000] * 300)
    ),
    Attack(
        "half a surrogate pair (raw)",
        lambda: b'{"prompt": "\\ud800", "sampling_params": {"max_tokens": 1}}',
        EITHER,
    ),
    Attack("half a surrogate pair (chat)", lambda: chat(messages=user("\ud800")), EITHER),
    Attack("half a surrogate pair (tokenize)", lambda: tokenize(prompt="\ud800"), EITHER),
    Attack("half a surrogate pair in a stop (raw)", lambda: params(stop=["\ud800"]), EITHER),
    Attack(
        "half a surrogate pair in a bad word (chat)", lambda: chat(bad_words=["\ud800"]), EITHER
    ),
    Attack("NUL (raw)", lambda: raw(prompt="\x00"), EITHER),
    Attack("no text (raw)", lambda: raw(prompt=""), EITHER),
    Attack("no text (completions)", lambda: completion(prompt=""), EITHER),
    Attack("no text (tokenize)", lambda: tokenize(prompt=""), EITHER),
]

ROWS = [*NAMES, *LONG]
