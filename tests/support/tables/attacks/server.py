"""Requests for the HTTP server (``--serve``): what no job can carry, and some of the jobs' rows."""

import json
from functools import partial

from support.tables.attacks.grammars import THREE, as_format
from support.tables.attacks.row import (
    ANSWERED,
    CANARY,
    EITHER,
    HELLO,
    Attack,
    Http,
    http,
    nested,
    user,
)
from support.tables.attacks.texts import SLASHES, chosen, named, words

CHAT = "/v1/chat/completions"


def get(path: str, method: str = "GET") -> Http:
    return Http(method, path)


def post(body: bytes, path: str = "/v1/completions", **headers: str) -> Http:
    return Http(
        "POST", path, body, {name.replace("_", "-"): text for name, text in headers.items()}
    )


ROWS = [
    Attack(
        "31 MB at /health",
        lambda: post(b'{"a": "' + b"x" * 31_000_000 + b'"}', "/health"),
        EITHER,
        harmful=True,
    ),
    Attack(
        "31 MB at /ping",
        lambda: post(b'{"a": "' + b"x" * 31_000_000 + b'"}', "/ping"),
        EITHER,
        harmful=True,
    ),
    Attack(
        "3 million zeros at /health",
        lambda: post(b"[" + b"0," * 3_000_000 + b"0]", "/health"),
        EITHER,
        harmful=True,
    ),
    Attack(
        "3 million zeros in a body",
        lambda: post(b'{"prompt": "Hi", "x": [' + b"0," * 3_000_000 + b"0]}"),
        EITHER,
    ),
    Attack(
        "31 MB of a prompt", lambda: http("/v1/completions", prompt="a " * 15_000_000, max_tokens=1)
    ),
    Attack("33 MB", lambda: post(b'{"a": "' + b"x" * 33_000_000 + b'"}')),
    Attack(
        "a length of 10**12, and little of it",
        lambda: Http(body=b"{", headers={"Content-Length": str(10**12)}, patience_s=5),
        EITHER,
    ),
    Attack(
        "100 bodies that never end",
        lambda: Http(body=b'{"prompt": "', headers={"Content-Length": "1000"}, patience_s=5),
        EITHER,
        harmful=True,
        times=100,
    ),
    Attack(
        "100 bodies of 4 MB at once",
        lambda: http("/v1/completions", prompt="a " * 2_000_000, max_tokens=1),
        EITHER,
        harmful=True,
        times=24,
    ),
    Attack(
        "400 requests at once",
        lambda: http("/v1/completions", prompt="Hi", max_tokens=2),
        EITHER,
        harmful=True,
        times=400,
    ),
    Attack("two lengths", lambda: post(b"{}", Transfer_Encoding="chunked"), EITHER),
    Attack(
        "a negative length", lambda: Http(headers={"Content-Length": "-1"}, patience_s=10), EITHER
    ),
    Attack("a header of 100 KB", lambda: post(b"{}", X_Long="a" * 100_000), EITHER),
    Attack(
        "2,000 headers",
        lambda: Http(body=b"{}", headers={f"X-{i}": "a" for i in range(2_000)}),
        EITHER,
    ),
    Attack("the wrong media type", lambda: post(b"{}", Content_Type="text/plain")),
    Attack(
        "another charset",
        lambda: post(
            '{"prompt": "é"}'.encode("utf-16"), Content_Type="application/json; charset=utf-16"
        ),
        EITHER,
    ),
    Attack(
        "compressed, but not",
        lambda: post(b'{"prompt": "Hi", "max_tokens": 1}', Content_Encoding="gzip"),
        EITHER,
    ),
    Attack("bytes that are no UTF-8", lambda: post(b'{"prompt": "\xff\xfe"}')),
    Attack("broken JSON", lambda: post(b'{"prompt": ')),
    Attack("a list", lambda: post(b"[]")),
    Attack("no body", lambda: post(b""), EITHER),
    Attack("100,000 levels", lambda: post(nested(100_000).encode())),
    Attack(
        "100,000 levels of lists",
        lambda: post(b'{"prompt": %s}' % nested(100_000, "[", "]").encode()),
    ),
    Attack(
        "a whole number of 5,000 digits",
        lambda: post(b'{"prompt": "Hi", "seed": %s}' % (b"9" * 5_000)),
    ),
    Attack("NaN", lambda: post(b'{"prompt": "Hi", "temperature": NaN, "max_tokens": 1}')),
    Attack("1e400", lambda: post(b'{"prompt": "Hi", "temperature": 1e400, "max_tokens": 1}')),
    *(
        Attack(f"the path {path[:40]} ({method})", partial(get, path, method))
        for path, method in (
            ("/%2e%2e/%2e%2e/etc/passwd", "GET"),
            ("/v1/../sleep", "POST"),
            ("/v1/load_lora_adapter", "POST"),
            ("/reset_prefix_cache", "POST"),
            ("/docs", "GET"),
            ("/" + "a" * 30_000, "GET"),
            ("/%00", "GET"),
            ("/%ff", "GET"),
            ("/v1/models", "DELETE"),
            ("/v1/models", "TRACE"),
            ("/v1/chat/completions", "PATCH"),
            ("/ping/../sleep", "POST"),
            ("/inference/v1/generate", "POST"),
        )
    ),
    Attack("the server's options", lambda: get("*", "OPTIONS"), EITHER),
    Attack(
        "a websocket",
        lambda: Http(
            "GET",
            "/v1/realtime",
            headers={
                "Upgrade": "websocket",
                "Connection": "Upgrade",
                "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
                "Sec-WebSocket-Version": "13",
            },
        ),
    ),
    Attack(
        "a tool's name of slashes",
        lambda: http(
            CHAT, messages=HELLO, max_tokens=4, tools=named(SLASHES), tool_choice=chosen(SLASHES)
        ),
        harmful=True,
    ),
    Attack(
        "three nested repetitions",
        lambda: http(
            CHAT, messages=HELLO, min_tokens=18, max_tokens=18, structured_outputs={"regex": THREE}
        ),
        harmful=True,
    ),
    Attack(
        "three nested repetitions in a pattern",
        lambda: http(
            CHAT,
            messages=HELLO,
            min_tokens=18,
            max_tokens=18,
            response_format=as_format({"type": "string", "pattern": THREE}),
        ),
    ),
    Attack(
        "0, then 60,000 empty messages",
        lambda: http(CHAT, messages=[0, *[{}] * 60_000]),
        harmful=True,
    ),
    Attack(
        "3 MB, cut to 10 tokens",
        lambda: http(
            "/v1/completions", prompt=words(3_000), truncate_prompt_tokens=10, max_tokens=1
        ),
        ANSWERED,
        harmful=True,
    ),
    Attack("3 MB (tokenize)", lambda: http("/tokenize", prompt=words(3_000)), harmful=True),
    Attack(
        "a refused stream",
        lambda: http(CHAT, messages=user(CANARY), stream=True, logprobs=True, top_logprobs=50),
        harmful=True,
    ),
    Attack(
        "a stream that the caller leaves",
        lambda: Http(
            path=CHAT,
            body=json.dumps({"messages": HELLO, "stream": True, "max_tokens": 900}).encode(),
            patience_s=0.2,
        ),
        EITHER,
        times=20,
    ),
    Attack(
        "an adapter is unloaded",
        lambda: http("/v1/unload_lora_adapter", lora_name="a"),
        harmful=True,
    ),
    Attack(
        "a key in the wrong form",
        lambda: Http(
            "GET",
            "/v1/models",
            headers={"Authorization": "Bearer \u00e9".encode("utf-8").decode("latin-1")},
        ),
        EITHER,
    ),
    Attack("the models", lambda: get("/v1/models"), ANSWERED),
]
