"""Hints which of vLLM's parsers suit a model. They are logged, never set."""

import re
from argparse import Namespace
from collections.abc import Iterator

from worker.engine.locations import find

# Families of models: a pattern of their names, their parser of tool calls and that of reasoning.
# The first match counts; a newer family stands before one whose name it contains.
FAMILIES: tuple[tuple[str, str | None, str | None], ...] = (
    (r"gpt-oss", "openai", "openai_gptoss"),
    (r"qwen3.*coder", "qwen3_coder", None),
    (r"qwen3.*(instruct|vl)", "hermes", None),
    (r"qwen3", "hermes", "qwen3"),
    (r"qwq", "hermes", "deepseek_r1"),
    (r"qwen2|hermes", "hermes", None),
    (r"deepseek.*v3\.2", "deepseek_v32", "deepseek_v3"),
    (r"deepseek.*v3\.1", "deepseek_v31", "deepseek_v3"),
    (r"deepseek.*v3", "deepseek_v3", None),
    (r"deepseek.*r1.*distill", None, "deepseek_r1"),
    (r"deepseek.*r1", "deepseek_v3", "deepseek_r1"),
    (r"llama-?4", "llama4_pythonic", None),
    (r"llama-?3", "llama3_json", None),
    (r"magistral", "mistral", "mistral"),
    (r"mistral|mixtral|ministral|devstral", "mistral", None),
    (r"granite-?4", "granite4", "granite"),
    (r"granite", "granite", "granite"),
    (r"glm-?4\.7", "glm47", "glm47"),
    (r"glm-?4\.[56]", "glm45", "glm45"),
    (r"kimi-?k2", "kimi_k2", "kimi_k2"),
    (r"minimax-?m2", "minimax_m2", "minimax_m2"),
    (r"gemma-?4", "gemma4", "gemma4"),
    (r"phi-?4-mini", "phi4_mini_json", None),
    (r"olmo-?3", "olmo3", "olmo3"),
    (r"seed-?oss", "seed_oss", "seed_oss"),
    (r"step-?3", "step3", "step3"),
    (r"internlm", "internlm", None),
    (r"jamba", "jamba", None),
    (r"hunyuan-?a13b", "hunyuan_a13b", "hunyuan_a13b"),
)


def hints(options: Namespace) -> Iterator[str]:
    """Yield which parsers to set for a well-known model, where none are set.

    Args:
        options: vLLM's options.
    """
    name = options.served_model_name[-1].lower()
    family = next((row for row in FAMILIES if re.search(row[0], name)), None)
    if family is None:
        return
    _, tools, reasoning = family
    if tools in find("ToolParserManager").list_registered() and not options.tool_call_parser:
        yield f"for tool calls set ENABLE_AUTO_TOOL_CHOICE=1 and TOOL_CALL_PARSER={tools}"
    known = find("ReasoningParserManager").list_registered()
    if reasoning in known and not options.reasoning_parser:
        yield f"to tell reasoning from the answer set REASONING_PARSER={reasoning}"
