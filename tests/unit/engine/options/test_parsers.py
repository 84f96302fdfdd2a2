"""Which parsers suit a model, by its architecture, its chat template and its name."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.doctor import CPU, candidate, options

from worker.doctor import checks
from worker.doctor.findings import Level
from worker.engine.arguments import EngineArguments
from worker.engine.configuring import configure
from worker.engine.options.parsers import REASONING, TOOLS, choose, told, with_parsers

LLAMA, QWEN2, QWEN3 = "LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"
DEEPSEEK, MISTRAL = "DeepseekV3ForCausalLM", "MistralForCausalLM"
BAR = "\N{FULLWIDTH VERTICAL LINE}"
# What the chat templates of the families' models have.
CHATML = "<tool_call></tool_call> XML tags: {{ '<|im_start|>assistant\\n' }}"
HYBRID = CHATML + "{% if enable_thinking is defined and enable_thinking is false %}"
THINKING = "<tool_call></tool_call>{{- '<|im_start|>assistant\\n<think>\\n' }}"
CODER = "<tool_call>\n<function=example_function_name>"
R1 = f"{{% if tool %}}<{BAR}tool▁calls▁begin{BAR}>{{% endif %}}<{BAR}Assistant{BAR}><think>\\n"
V3 = f"<{BAR}tool▁calls▁begin{BAR}><{BAR}Assistant{BAR}>"
V31 = V3 + "{% if not thinking is defined %}{% set thinking = false %}{% endif %}<think>"
LLAMA_3 = "{{- 'Environment: ipython' }}<|python_tag|>"
MISTRAL_3 = "[AVAILABLE_TOOLS][TOOL_CALLS]"


@pytest.mark.parametrize(
    ("name", "tools", "reasoning"),
    [
        ("openai/gpt-oss-20b", "openai", "openai_gptoss"),
        ("Qwen/Qwen3-8B", "hermes", "qwen3"),
        ("Qwen/Qwen3-4B-Instruct-2507", "hermes", None),
        ("Qwen/Qwen3-VL-8B-Thinking", "hermes", "qwen3"),
        ("Qwen/Qwen3-Coder-30B-A3B-Instruct", "qwen3_coder", None),
        ("Qwen/Qwen3.5-9B", "qwen3_coder", "qwen3"),
        ("Qwen/Qwen2.5-7B-Instruct", "hermes", None),
        ("Qwen/QwQ-32B", "hermes", "deepseek_r1"),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", None, "deepseek_r1"),
        ("deepseek-ai/DeepSeek-R1-0528-Qwen3-8B", None, "deepseek_r1"),
        ("deepseek-ai/DeepSeek-R1", "deepseek_v3", "deepseek_r1"),
        ("deepseek-ai/DeepSeek-V3.2", "deepseek_v32", "deepseek_v3"),
        ("meta-llama/Llama-3.2-1B", "llama3_json", None),
        ("meta-llama/Meta-Llama-3-8B-Instruct", None, None),
        ("mistralai/Magistral-Small-2509", "mistral", "mistral"),
        ("zai-org/GLM-4.7-Flash", "glm47", "glm47"),
        ("moonshotai/Kimi-K2-Instruct", "kimi_k2", None),
        ("moonshotai/Kimi-K2-Thinking", "kimi_k2", "kimi_k2"),
        ("ibm-granite/granite-4.0-h-small", "granite4", None),
        ("demo", None, None),
    ],
)
def test_a_name_alone_says_which_parsers_where_no_file_is_known(
    name: str, tools: str | None, reasoning: str | None
) -> None:
    found = choose(name, (), None)
    assert (found.parser(TOOLS), found.parser(REASONING)) == (tools, reasoning)


@pytest.mark.parametrize(
    ("architecture", "template", "family"),
    [
        (QWEN3, HYBRID, "Qwen3"),
        (QWEN3, THINKING, "Qwen3"),
        (QWEN3, CHATML, "Qwen3 Instruct"),
        ("Qwen3MoeForCausalLM", CODER, "Qwen3-Coder"),
        (QWEN3, R1, "DeepSeek-R1 distilled"),
        (QWEN2, CHATML, "Qwen2.5"),
        (QWEN2, THINKING, "QwQ"),
        (QWEN2, R1, "DeepSeek-R1 distilled"),
        (LLAMA, LLAMA_3, "Llama 3"),
        (LLAMA, R1, "DeepSeek-R1 distilled"),
        (LLAMA, CHATML, "Hermes"),
        (DEEPSEEK, R1, "DeepSeek-R1"),
        (DEEPSEEK, V3, "DeepSeek-V3"),
        (DEEPSEEK, V31, "DeepSeek-V3.1"),
        (DEEPSEEK, "<|tool_calls_section_begin|>", "Kimi K2"),
        (MISTRAL, MISTRAL_3, "Mistral"),
        (MISTRAL, MISTRAL_3 + "[THINK]", "Magistral"),
        ("Phi3ForCausalLM", "<|system|><|tool|>", "Phi-4 mini"),
        ("GptOssForCausalLM", "<|start|>", "gpt-oss"),
    ],
)
def test_a_fine_tune_with_another_name_has_the_parsers_of_its_family(
    architecture: str, template: str, family: str
) -> None:
    found = choose("me/my-qwen3-coder-gemma4", [architecture], template)
    assert found.family is not None
    assert found.family.title == family


def test_a_template_that_no_family_has_is_not_read_by_a_parser_for_others() -> None:
    found = choose("Qwen/Qwen3-8B", [QWEN3], "{% for message in messages %}{% endfor %}")
    assert found.family is None
    assert "its chat template" in found.why


def test_a_name_does_not_make_a_family_of_another_architecture() -> None:
    assert choose("me/Qwen3-clone", ["OPTForCausalLM"], None).family is None
    # Its template isn't known, and the family is that of neither the name nor the architecture.
    assert choose("me/my-qwen3", [LLAMA], None).family is None
    by_architecture = choose("me/mine", ["SeedOssForCausalLM"], None)
    assert by_architecture.parser(TOOLS) == "seed_oss"
    assert choose("google/gemma-3-1b-it", ["Gemma3ForCausalLM"], None).family is None


def written(folder: Path, template: str, **config: Any) -> Path:
    """Write what is known of a model: its configuration, and a tokenizer's."""
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    return folder


def read(place: Path, **settings: str) -> EngineArguments:
    return options(CPU).parse({"MODEL": str(place), **settings})


def test_auto_becomes_the_parsers_of_the_models_family(tmp_path: Path) -> None:
    place = written(tmp_path, HYBRID, architectures=[QWEN3])
    asked = read(place, TOOL_CALL_PARSER="auto", REASONING_PARSER="auto")
    found = with_parsers(asked).vllm
    assert (found.tool_call_parser, found.reasoning_parser) == ("hermes", "qwen3")
    assert found.enable_auto_tool_choice
    (line,) = told(asked.vllm)
    assert line == (
        f"TOOL_CALL_PARSER=hermes, REASONING_PARSER=qwen3: Qwen3, by {QWEN3} and its chat template"
    )


def test_a_template_that_the_operator_sets_counts(tmp_path: Path) -> None:
    place = written(tmp_path, HYBRID, architectures=[QWEN3])
    found = with_parsers(read(place, REASONING_PARSER="auto", CHAT_TEMPLATE=CHATML))
    assert not found.vllm.reasoning_parser
    assert with_parsers(read(place, REASONING_PARSER="auto")).vllm.reasoning_parser == "qwen3"


def test_a_template_in_a_file_of_its_own_counts(tmp_path: Path) -> None:
    place = written(tmp_path, "", architectures=[QWEN3])
    (place / "chat_template.jinja").write_text(CODER)
    found = with_parsers(read(place, TOOL_CALL_PARSER="auto"))
    assert found.vllm.tool_call_parser == "qwen3_coder"


def test_a_parser_that_the_operator_chose_stays(tmp_path: Path) -> None:
    place = written(tmp_path, HYBRID, architectures=[QWEN3])
    chosen = {"TOOL_CALL_PARSER": "jamba", "ENABLE_AUTO_TOOL_CHOICE": "1"}
    found = with_parsers(read(place, REASONING_PARSER="auto", **chosen)).vllm
    assert (found.tool_call_parser, found.reasoning_parser) == ("jamba", "qwen3")


def test_tools_that_the_operator_turned_off_stay_off(tmp_path: Path) -> None:
    place = written(tmp_path, HYBRID, architectures=[QWEN3])
    off = read(place, TOOL_CALL_PARSER="auto", ENABLE_AUTO_TOOL_CHOICE="0")
    assert not with_parsers(off).vllm.enable_auto_tool_choice


def test_what_is_not_set_is_hinted_at(tmp_path: Path) -> None:
    place = written(tmp_path, HYBRID, architectures=[QWEN3])
    assert [line.rpartition("=")[2] for line in told(read(place).vllm)] == ["hermes", "qwen3"]
    (line,) = told(read(place, REASONING_PARSER="deepseek_r1").vllm)
    assert line.endswith("TOOL_CALL_PARSER=hermes")


def test_a_model_of_no_family_starts_without_a_parser(demo_model: Path) -> None:
    plain = "{% for message in messages %}{{ message.content }}{% endfor %}"
    asked = read(demo_model, TOOL_CALL_PARSER="auto", REASONING_PARSER="auto", CHAT_TEMPLATE=plain)
    found = configure(asked).arguments.vllm
    assert not found.tool_call_parser
    assert not found.reasoning_parser
    assert not found.enable_auto_tool_choice
    (line,) = told(asked.vllm)
    assert line.startswith("TOOL_CALL_PARSER=none, REASONING_PARSER=none: no family")


def test_the_doctor_says_what_auto_stands_for() -> None:
    (found,) = checks.parsers(candidate(TOOL_CALL_PARSER="auto"))
    # config.json is all that is known, and the model is called org/name.
    assert found.level is Level.WARN
    assert found.text.startswith("TOOL_CALL_PARSER=none: no family")
    named = candidate(TOOL_CALL_PARSER="auto", SERVED_MODEL_NAME="x", MODEL="me/Llama-3.1-mine")
    (found,) = checks.parsers(named)
    assert (found.level, "llama3_json" in found.text) == (Level.OK, True)
    assert [*checks.parsers(candidate())] == []
