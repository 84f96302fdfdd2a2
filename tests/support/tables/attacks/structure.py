"""Inputs of many or deep parts, most of them small in bytes."""

from support.tables.attacks.row import (
    CANARY,
    EITHER,
    HELLO,
    Attack,
    anthropic,
    chat,
    completion,
    count_tokens,
    detokenize,
    engine,
    nested,
    params,
    raw,
    responses,
    tokenize,
    user,
)

ITEMS = 60_000
# A chat whose last key is written by hand.
OPEN = (
    b'{"route": "/v1/chat/completions", "body": {'
    b'"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, '
)

ROWS = [
    Attack(
        "5,000 prompts that share 2,000 tools",
        lambda: {
            "prompts": ["a"] * 5_000,
            "tools": [{}] * 2_000,
            "sampling_params": {"max_tokens": 1},
        },
        EITHER,
        harmful=True,
    ),
    Attack(
        "2,000 conversations that share 2,000 tools",
        lambda: {
            "messages_list": [HELLO] * 2_000,
            "tools": [{}] * 2_000,
            "sampling_params": {"max_tokens": 1},
        },
        EITHER,
    ),
    Attack(
        "2,000 prompts that share 5,000 template arguments",
        lambda: {
            "prompts": ["a"] * 2_000,
            "chat_template_kwargs": {str(i): i for i in range(5_000)},
            "sampling_params": {"max_tokens": 1},
        },
        EITHER,
    ),
    Attack(
        "2,000 prompts that share a logit_bias of 300",
        lambda: {
            "prompts": ["a"] * 2_000,
            "sampling_params": {"max_tokens": 1, "logit_bias": {str(i): 1 for i in range(300)}},
        },
        EITHER,
    ),
    Attack(
        "1,000 prompts, each with a schema of its own",
        lambda: {
            "prompts": ["a"] * 1_000,
            "sampling_params": [
                {"max_tokens": 1, "guided_json": {"title": f"{CANARY}{i}"}} for i in range(1_000)
            ],
        },
        EITHER,
    ),
    Attack(
        "10,000 prompts that are wrong",
        lambda: {"prompts": [{}] * 10_000, "sampling_params": {"max_tokens": 1}},
    ),
    Attack(
        "10,000 prompts, each with parameters of its own",
        lambda: {
            "prompts": ["a"] * 10_000,
            "sampling_params": [{"max_tokens": 1, "seed": seed} for seed in range(10_000)],
        },
        EITHER,
    ),
    Attack("10,001 prompts", lambda: {"prompts": ["a"] * 10_001}),
    Attack("500,000 messages of 0 (raw)", lambda: {"messages": [0] * 500_000}, harmful=True),
    Attack("500,000 messages of 0 (chat)", lambda: chat(messages=[0] * 500_000), harmful=True),
    Attack(
        "0, then 60,000 empty messages (chat)",
        lambda: chat(messages=[0, *[{}] * ITEMS]),
        harmful=True,
    ),
    Attack(
        "true, then 60,000 empty messages (chat)",
        lambda: chat(messages=[True, *[{}] * ITEMS]),
        harmful=True,
    ),
    Attack(
        "0, then 60,000 empty messages (tokenize)",
        lambda: tokenize(messages=[0, *[{}] * ITEMS]),
        harmful=True,
    ),
    Attack(
        "0, then 60,000 empty items (responses)",
        lambda: responses(input=[0, *[{}] * ITEMS]),
        harmful=True,
    ),
    Attack(
        "0, then 60,000 empty messages (messages)",
        lambda: anthropic(messages=[0, *[{}] * ITEMS]),
        harmful=True,
    ),
    Attack(
        "0, then 499 empty items (responses)",
        lambda: responses(input=[0, *[{}] * 499]),
        harmful=True,
    ),
    Attack("499 empty items (responses)", lambda: responses(input=[{}] * 499)),
    Attack(
        "2,000 items with unknown types (responses)",
        lambda: responses(input=[{"type": "x", "role": "user", "content": [{}]}] * 2_000),
    ),
    Attack("0, then 60,000 empty tools (chat)", lambda: chat(tools=[0, *[{}] * ITEMS])),
    Attack(
        "0, then 60,000 empty prompts (completions)", lambda: completion(prompt=[0, *[{}] * ITEMS])
    ),
    Attack("0, then 60,000 texts (completions)", lambda: completion(prompt=[0, *["a"] * ITEMS])),
    Attack("60,000 booleans as a prompt (completions)", lambda: completion(prompt=[True] * ITEMS)),
    Attack("0, then 60,000 texts to stop at (chat)", lambda: chat(stop=[0, *["a"] * ITEMS])),
    Attack(
        "0, then 60,000 parts in a message (chat)", lambda: chat(messages=user([0, *[{}] * ITEMS]))
    ),
    Attack(
        "0, then 60,000 parts in a message (raw)", lambda: {"messages": user([0, *[{}] * ITEMS])}
    ),
    Attack("60,000 empty parts in a message (raw)", lambda: {"messages": user([{}] * ITEMS)}),
    Attack(
        "60,000 text parts in a message (raw)",
        lambda: {"messages": user([{"type": "text", "text": "a"}] * ITEMS)},
    ),
    Attack(
        "2,000 messages of 2,000 parts (chat)",
        lambda: chat(messages=user([{"type": "text", "text": ""}] * 200) * 2_000),
    ),
    Attack(
        "60,000 tool calls in a message (chat)",
        lambda: chat(messages=[{"role": "assistant", "tool_calls": [0, *[{}] * ITEMS]}]),
    ),
    Attack(
        "60,000 tool calls in a message (raw)",
        lambda: {"messages": [{"role": "assistant", "content": "", "tool_calls": [{}] * ITEMS}]},
        EITHER,
    ),
    Attack(
        "60,000 parts in a tool's result (messages)",
        lambda: anthropic(
            messages=user(
                [{"type": "tool_result", "tool_use_id": "1", "content": [0, *[{}] * ITEMS]}]
            )
        ),
    ),
    Attack("60,000 empty tools (raw)", lambda: raw(tools=[{}] * ITEMS)),
    Attack("60,000 empty tools (messages)", lambda: anthropic(tools=[0, *[{}] * ITEMS])),
    Attack("60,000 empty tools (count_tokens)", lambda: count_tokens(tools=[0, *[{}] * ITEMS])),
    Attack("60,000 system parts (messages)", lambda: anthropic(system=[0, *[{}] * ITEMS])),
    Attack("60,000 empty tokens (detokenize)", lambda: detokenize(tokens=[0, *[{}] * ITEMS])),
    Attack(
        "60,000 unknown keys (chat)", lambda: chat(**{f"key{i}": i for i in range(ITEMS)}), EITHER
    ),
    Attack("60,000 unknown keys (raw)", lambda: raw(**{f"key{i}": i for i in range(ITEMS)})),
    Attack(
        "60,000 unknown sampling parameters (raw)",
        lambda: params(**{f"key{i}": i for i in range(ITEMS)}),
    ),
    Attack(
        "60,000 unknown keys (responses)",
        lambda: responses(**{f"key{i}": i for i in range(ITEMS)}),
        EITHER,
    ),
    Attack(
        "60,000 keys in metadata (chat)",
        lambda: chat(metadata={f"key{i}": "a" for i in range(ITEMS)}),
        EITHER,
    ),
    Attack(
        "60,000 keys in a message (chat)",
        lambda: chat(messages=user("Hi", **{f"key{i}": i for i in range(ITEMS)})),
        EITHER,
    ),
    Attack(
        "60,000 keys in a message (raw)",
        lambda: {"messages": user("Hi", **{f"key{i}": i for i in range(ITEMS)})},
        EITHER,
    ),
    Attack(
        "60,000 keys in stream_options (chat)",
        lambda: chat(stream=True, stream_options={f"key{i}": i for i in range(ITEMS)}),
        EITHER,
    ),
    Attack(
        "60,000 keys in a tool's schema (chat)",
        lambda: chat(
            tools=[
                {
                    "type": "function",
                    "function": {"name": "f", "parameters": {f"key{i}": i for i in range(ITEMS)}},
                }
            ]
        ),
        EITHER,
    ),
    Attack(
        "1,000,000 zeros somewhere unknown (chat)", lambda: chat(unknown=[0] * 1_000_000), EITHER
    ),
    Attack(
        "1,000,000 zeros in a template's argument (raw)",
        lambda: raw(chat_template_kwargs={"a": [0] * 1_000_000}),
        EITHER,
    ),
    Attack("300,000 empty lists in a list (chat)", lambda: chat(unknown=[[]] * 300_000), EITHER),
    Attack(
        "300,000 empty lists as token ids (completions)", lambda: completion(prompt=[[]] * 300_000)
    ),
    Attack("60,000 lists of one id (completions)", lambda: completion(prompt=[[1]] * ITEMS)),
    Attack(
        "900 levels in a template's argument (chat)",
        lambda: OPEN + b'"chat_template_kwargs": %s}}' % nested(900).encode(),
        EITHER,
    ),
    Attack(
        "900 levels in a schema (raw)",
        lambda: b'{"prompt": "Hi", "sampling_params": {"guided_json": %s}}' % nested(900).encode(),
    ),
    Attack(
        "900 levels somewhere unknown (chat)",
        lambda: OPEN + b'"x": %s}}' % nested(900, "[", "]").encode(),
        EITHER,
    ),
    Attack(
        "100,000 levels (raw)",
        lambda: b'{"prompt": "Hi", "tools": %s}' % nested(100_000, "[", "]").encode(),
    ),
    Attack(
        "100,000 levels (chat)",
        lambda: b'{"route": "/v1/chat/completions", "body": %s}' % nested(100_000).encode(),
    ),
    Attack(
        "500 levels of messages (chat)",
        lambda: (
            b'{"route": "/v1/chat/completions", "body": {"messages": %s}}'
            % nested(500, "[", "]", "{}").encode()
        ),
    ),
    # Values are counted as they are written, before anything is parsed.
    Attack(
        "the same key 100,000 times (raw)",
        lambda: (
            b'{"prompt": "Hi", %s "sampling_params": {"max_tokens": 1}}'
            % (b'"stream": false,' * 100_000)
        ),
    ),
    Attack(
        "a whole number of 5,000 digits (raw)",
        lambda: b'{"prompt": "Hi", "max_batch_size": %s}' % (b"9" * 5_000),
    ),
    Attack(
        "a whole number of 4,000 digits (chat)",
        lambda: (
            b'{"route": "/v1/chat/completions", "body": {"messages": [], "seed": %s}}'
            % (b"9" * 4_000)
        ),
    ),
    Attack("the input is a list", lambda: [1, 2, 3]),
    Attack("the input is a text", lambda: "Hi"),
    Attack("the input is empty", dict),
    Attack(
        "all shapes at once",
        lambda: {**raw(), **chat(), "prompts": ["a"], "messages_list": [HELLO]},
    ),
    Attack("no messages (chat)", lambda: chat(messages=[])),
    Attack("messages are null (chat)", lambda: chat(messages=None)),
    Attack("messages are a text (raw)", lambda: {"messages": "Hi"}),
    Attack("a message without a role (raw)", lambda: {"messages": [{"content": "Hi"}]}),
    Attack("no prompts", lambda: {"prompts": []}),
    Attack(
        "a prompt for each of two sampling parameters",
        lambda: {"prompts": ["a"], "sampling_params": [{}, {}]},
    ),
    Attack("sampling parameters are a list (raw)", lambda: raw(sampling_params=[])),
    Attack("LLM Engine with 60,000 stop sequences", lambda: engine(stop_sequences=["a"] * ITEMS)),
    Attack(
        "0, then 60,000 empty messages, eight at once (chat)",
        lambda: chat(messages=[0, *[{}] * ITEMS]),
        times=8,
    ),
    Attack("64 requests of 100 KB of zeros at once", lambda: {"messages": [0] * 50_000}, times=64),
]
