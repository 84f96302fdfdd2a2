"""Requests for what lies on the volume: paths that are not for callers, and inputs that grow."""

from functools import partial
from pathlib import Path
from typing import Any

from support.tables.attacks.row import CANARY, EITHER, Attack, Body, route

V1, V2 = "/v1/llm/batch-completions", "/v2/batch-completions"
MODEL = {"model": "demo"}
CHATS = [{"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}]
TEMPLATE = {"prompt": f"{{% for m in messages %}}{CANARY}{{% endfor %}}", "echo": True}
# What an operator may keep there, and a caller's file of 18 MB in which nothing is a prompt.
OWN = ("secret-of-operator/.env", ".cache/token", "models/my-model/config.json", "inbox/.env")
LISTS = "inbox/lists.json"
OUTPUTS = (
    *("models/my-model/chat_template.jinja", "models/my-model/generation_config.json"),
    *("adapters/mine/adapter_config.json", "worker/files/a/content", "inbox/over.json"),
    *("out/.hidden", "../above.json"),
)


def lay_out(root: Path) -> None:
    """Make a volume for these rows."""
    for name in (*OWN, LISTS):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
    for name in OWN:
        (root / name).write_text('{"prompt": "Hi", "response": "a"}\n')
    lists = '{"prompts": ["Hi"], "max_new_tokens": 1, "temperature": 0, "stop_sequences": ['
    (root / LISTS).write_text(lists + "[]," * 6_000_000 + "[]]}")


def batch(path: str = V2, **body: Any) -> Body:
    shared = {"model_config": MODEL, "output_data_path": f"out/{CANARY}.json"}
    return route(path, **{**shared, **body})


def file(path: str) -> Body:
    return {"route": "/v1/files", "method": "POST", "body": {"path": path}}


def labels(count: int, size: int) -> dict[str, str]:
    return {f"{number}{CANARY}": "a" * size for number in range(count)}


ROWS = [
    *(
        Attack(
            f"an output to {place} (LLM Engine)",
            partial(batch, content=[TEMPLATE], output_data_path=place),
            harmful=True,
        )
        for place in OUTPUTS
    ),
    *(Attack(f"a file of {place}", partial(file, place), harmful=True) for place in OWN),
    Attack(
        "a batch of an operator's file",
        lambda: {"batch": {"input_path": OWN[0], "endpoint": "/v1/completions"}},
        harmful=True,
    ),
    Attack(
        "an input of an operator's file (LLM Engine)",
        lambda: batch(input_data_path=OWN[0]),
        harmful=True,
    ),
    Attack(
        "18 MB of empty lists beside the prompts of a file",
        lambda: batch(V1, input_data_path=LISTS),
        harmful=True,
    ),
    Attack(
        "18 MB of empty lists beside the prompts of a file, 20 at once",
        lambda: batch(V1, input_data_path=LISTS),
        harmful=True,
        times=20,
    ),
    Attack(
        "labels of 19 MB (LLM Engine)",
        lambda: batch(content=CHATS, labels=labels(1, 19_000_000)),
        harmful=True,
    ),
    Attack(
        "9,000 labels (LLM Engine)",
        lambda: batch(content=CHATS, labels=labels(9_000, 1)),
        harmful=True,
    ),
    Attack(
        "9,000 keys of a model's configuration (LLM Engine)",
        lambda: batch(
            content=CHATS, model_config={**MODEL, **{f"k{n}": "a" * 1_000 for n in range(9_000)}}
        ),
        EITHER,
        harmful=True,
    ),
]
