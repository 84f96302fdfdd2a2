"""What another release of vLLM moves: how it is read, and how it is said."""

import json
import os
import subprocess
import sys

import vllm_news
from support import ROOT

INSTALLED = json.loads(
    subprocess.run(
        [sys.executable, vllm_news.__file__],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout.splitlines()[-1]
)


def release(version: str, **names: dict[str, str] | str) -> vllm_news.Release:
    return {**{kind: {} for kind in vllm_news._KINDS}, "version": version, **names}


def test_every_kind_of_name_can_be_read_from_the_installed_vllm() -> None:
    assert {kind for kind in vllm_news._KINDS if not isinstance(INSTALLED[kind], dict)} == set()
    assert INSTALLED["options, with their defaults"]["SEED"] == "0"
    assert "POST" in INSTALLED["routes"]["/v1/chat/completions"]
    assert INSTALLED["names that the worker uses"]["LoRARequest"] == "vllm.lora.request"
    assert "hermes" in INSTALLED["tool parsers"]
    assert "deepseek_r1" in INSTALLED["reasoning parsers"]
    assert "LlamaForCausalLM" in INSTALLED["architectures"]


def test_the_fields_of_all_conversations_are_read() -> None:
    routes = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")
    assert {f"{route} model" for route in routes} <= INSTALLED["fields of requests"].keys()


def test_what_came_went_and_differs_is_a_line_each() -> None:
    before = release("1.0", routes={"/gone": "GET", "/kept": "GET", "/changed": "GET"})
    after = release("1.1", routes={"/new": "", "/kept": "GET", "/changed": "GET POST"})
    said = vllm_news.news(before, after)
    assert said.startswith("vLLM 1.1 against 1.0:")
    moved = "routes\n  + /new\n  - /gone: GET\n  ~ /changed: GET -> GET POST\n"
    assert moved in said
    assert said.count("nothing moved") == len(vllm_news._KINDS) - 1


def test_a_kind_that_can_not_be_read_is_said_instead_of_all_its_names() -> None:
    before, after = release("1.0", routes={"/gone": "GET"}), release("1.1", routes="MovedName: x")
    assert "routes\n  could not be read: MovedName: x\n" in vllm_news.news(before, after)
