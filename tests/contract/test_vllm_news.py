"""What another release of vLLM moves: how it is read, and how it is said."""

import json
import os
import subprocess
import sys

import pytest
import vllm_news
from support import ROOT


def release(version: str, **names: dict[str, str] | str) -> vllm_news.Release:
    return {**{kind: {} for kind in vllm_news._KINDS}, "version": version, **names}


@pytest.mark.slow
def test_every_kind_of_name_is_read_from_the_installed_vllm() -> None:
    command = [sys.executable, vllm_news.__file__]
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    ran = subprocess.run(command, env=environ, stdout=subprocess.PIPE, text=True, check=True)
    installed = json.loads(ran.stdout.splitlines()[-1])
    assert {kind for kind in vllm_news._KINDS if not isinstance(installed[kind], dict)} == set()
    assert installed["options, with their defaults"]["SEED"] == "0"
    assert "POST" in installed["routes"]["/v1/chat/completions"]
    assert installed["names that the worker uses"]["LoRARequest"] == "vllm.lora.request"
    assert "hermes" in installed["tool parsers"]
    assert "deepseek_r1" in installed["reasoning parsers"]
    assert "LlamaForCausalLM" in installed["architectures"]
    conversations = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")
    fields = {f"{route} model" for route in conversations}
    assert fields <= installed["fields of requests"].keys()


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
