"""Well-known families of models, and which of vLLM's parsers read what they write.

The parsers are those of vLLM's documentation (tool calling, reasoning outputs) and of its parsers'
own descriptions.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

_MISTRAL = (
    "MistralForCausalLM",
    "MixtralForCausalLM",
    "Mistral3ForConditionalGeneration",
    "Ministral3ForCausalLM",
    "MistralLarge3ForCausalLM",
)
_QWEN2 = ("Qwen2ForCausalLM", "Qwen2MoeForCausalLM")
_QWEN3 = (
    "Qwen3ForCausalLM",
    "Qwen3MoeForCausalLM",
    "Qwen3NextForCausalLM",
    "Qwen3VLForConditionalGeneration",
    "Qwen3VLMoeForConditionalGeneration",
)
_QWEN3_5 = (
    "Qwen3_5ForConditionalGeneration",
    "Qwen3_5MoeForConditionalGeneration",
    "Qwen3_5ForCausalLM",
    "Qwen3_5MoeForCausalLM",
)
_DEEPSEEK = ("DeepseekV3ForCausalLM",)
_GRANITE = ("GraniteForCausalLM", "GraniteMoeForCausalLM")
# How DeepSeek's templates begin an answer.
_DEEPSEEK_TURN = "<\N{FULLWIDTH VERTICAL LINE}Assistant\N{FULLWIDTH VERTICAL LINE}>"
# What templates have that begin the answer with its reasoning, or that can be told not to.
_BEGINS = (r"assistant\n<think>",)
_THINKS = ("enable_thinking", *_BEGINS)


@dataclass(frozen=True)
class Family:
    """A family of models.

    Attributes:
        title: as people call it.
        names: what its models' names have, in lower case.
        architectures: those of its models' config.json.
        tools: the parser of its tool calls; None if vLLM has none.
        reasoning: the parser of its reasoning; None if it has none, or vLLM no parser.
        marks: texts of which the chat templates of its models have at least one, and those of the
            families that stand below it and have an architecture in common have none.
    """

    title: str
    names: re.Pattern[str]
    architectures: Iterable[str]
    tools: str | None
    reasoning: str | None
    marks: tuple[str, ...] = ("",)


# The first match counts: a family stands before one whose name, or template, contains its own.
FAMILIES = (
    Family("gpt-oss", re.compile(r"gpt-oss"), ("GptOssForCausalLM",), "openai", "openai_gptoss"),
    Family(
        "Qwen3-Coder", re.compile(r"qwen3.*coder"), _QWEN3, "qwen3_coder", None, ("<function=",)
    ),
    Family("Qwen3.5", re.compile(r"qwen3\.[56]"), _QWEN3_5, "qwen3_coder", "qwen3"),
    Family(
        "DeepSeek-R1 distilled",
        re.compile(r"deepseek.*r1.*(distill|qwen|llama)"),
        ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"),
        None,
        "deepseek_r1",
        (_DEEPSEEK_TURN,),
    ),
    Family("QwQ", re.compile(r"qwq"), _QWEN2, "hermes", "deepseek_r1", _BEGINS),
    Family("Qwen3", re.compile(r"qwen3(?!.*instruct)"), _QWEN3, "hermes", "qwen3", _THINKS),
    Family("Qwen3 Instruct", re.compile(r"qwen3"), _QWEN3, "hermes", None, ("<tool_call>",)),
    Family("Qwen2.5", re.compile(r"qwen2"), _QWEN2, "hermes", None, ("<tool_call>",)),
    Family(
        "Hermes",
        re.compile(r"hermes"),
        ("LlamaForCausalLM", *_MISTRAL),
        "hermes",
        None,
        ("<tool_call>",),
    ),
    Family(
        "DeepSeek-V4",
        re.compile(r"deepseek.*v4(?!\.)"),
        ("DeepseekV4ForCausalLM",),
        "deepseek_v4",
        "deepseek_v4",
    ),
    Family(
        "DeepSeek-V3.2",
        re.compile(r"deepseek.*v3\.2"),
        ("DeepseekV32ForCausalLM",),
        "deepseek_v32",
        "deepseek_v3",
    ),
    Family(
        "Kimi K2.5",
        re.compile(r"kimi-?k2\.\d"),
        ("KimiK25ForConditionalGeneration",),
        "kimi_k2",
        "kimi_k2",
    ),
    Family(
        "Kimi K2 Thinking",
        re.compile(r"kimi-?k2.*thinking"),
        _DEEPSEEK,
        "kimi_k2",
        "kimi_k2",
        ("reasoning_content",),
    ),
    Family(
        "Kimi K2",
        re.compile(r"kimi-?k2"),
        _DEEPSEEK,
        "kimi_k2",
        None,
        ("tool_calls_section_begin",),
    ),
    Family(
        "DeepSeek-V3.1",
        re.compile(r"deepseek.*v3\.1"),
        _DEEPSEEK,
        "deepseek_v31",
        "deepseek_v3",
        ("thinking",),
    ),
    Family(
        "DeepSeek-R1",
        re.compile(r"deepseek.*r1"),
        _DEEPSEEK,
        "deepseek_v3",
        "deepseek_r1",
        (f"{_DEEPSEEK_TURN}<think>",),
    ),
    Family(
        "DeepSeek-V3",
        re.compile(r"deepseek.*v3"),
        _DEEPSEEK,
        "deepseek_v3",
        None,
        ("tool▁calls▁begin",),
    ),
    Family(
        "Llama 4",
        re.compile(r"llama-?4"),
        ("Llama4ForConditionalGeneration", "Llama4ForCausalLM"),
        "llama4_pythonic",
        None,
    ),
    Family(
        "Llama 3",
        re.compile(r"llama-?3\.[1-3]"),
        ("LlamaForCausalLM",),
        "llama3_json",
        None,
        ("<|python_tag|>", "ipython"),
    ),
    Family("Magistral", re.compile(r"magistral"), _MISTRAL, "mistral", "mistral", ("[THINK]",)),
    Family(
        "Mistral",
        re.compile(r"mistral|mixtral|ministral|devstral"),
        _MISTRAL,
        "mistral",
        None,
        ("[TOOL_CALLS]",),
    ),
    Family(
        "Granite 4.2",
        re.compile(r"granite-?4\.2"),
        ("GraniteMoeHybridForCausalLM", *_GRANITE),
        "qwen3_coder",
        "granite_thinking_parser",
        ("<function=",),
    ),
    Family(
        "Granite 4",
        re.compile(r"granite-?4"),
        ("GraniteMoeHybridForCausalLM", "GraniteForCausalLM"),
        "granite4",
        None,
        ("</tool_call>",),
    ),
    Family(
        "Granite 3.2",
        re.compile(r"granite-?3\.2"),
        _GRANITE,
        "granite",
        "granite",
        ("Here is my thought process",),
    ),
    Family("Granite 3", re.compile(r"granite-?3"), _GRANITE, "granite", None, ("tool_call",)),
    Family(
        "GLM-4.7 and 5",
        re.compile(r"glm-?(4\.7|5)"),
        ("Glm4MoeLiteForCausalLM", "GlmMoeDsaForCausalLM"),
        "glm47",
        "glm47",
    ),
    Family(
        "GLM-4.5",
        re.compile(r"glm-?4\.[56]"),
        ("Glm4MoeForCausalLM", "Glm4vMoeForConditionalGeneration"),
        "glm45",
        "glm45",
    ),
    Family(
        "MiniMax M2",
        re.compile(r"minimax-?m2"),
        ("MiniMaxM2ForCausalLM",),
        "minimax_m2",
        "minimax_m2",
    ),
    Family(
        "Gemma 4",
        re.compile(r"gemma-?4"),
        ("Gemma4ForConditionalGeneration", "Gemma4ForCausalLM"),
        "gemma4",
        "gemma4",
    ),
    Family(
        "FunctionGemma",
        re.compile(r"functiongemma"),
        ("Gemma3ForCausalLM",),
        "functiongemma",
        None,
        ("<start_function_call>",),
    ),
    Family(
        "Phi-4 reasoning",
        re.compile(r"phi-?4.*reasoning"),
        ("Phi3ForCausalLM",),
        None,
        "deepseek_r1",
        ("<think>",),
    ),
    Family(
        "Phi-4 mini",
        re.compile(r"phi-?4-mini"),
        ("Phi3ForCausalLM",),
        "phi4_mini_json",
        None,
        ("<|tool|>",),
    ),
    Family(
        "Olmo 3 Think",
        re.compile(r"olmo-?3.*think"),
        ("Olmo3ForCausalLM",),
        "olmo3",
        "olmo3",
        ("<think>",),
    ),
    Family(
        "Olmo 3",
        re.compile(r"olmo-?3"),
        ("Olmo3ForCausalLM",),
        "olmo3",
        None,
        ("<function_calls>",),
    ),
    Family("Seed-OSS", re.compile(r"seed-?oss"), ("SeedOssForCausalLM",), "seed_oss", "seed_oss"),
    Family("Step-3.5", re.compile(r"step-?3\.5"), ("Step3p5ForCausalLM",), "step3p5", "step3p5"),
    Family(
        "Step-3", re.compile(r"step-?3"), ("Step3VLForConditionalGeneration",), "step3", "step3"
    ),
    Family("InternLM", re.compile(r"internlm"), ("InternLM2ForCausalLM",), "internlm", None),
    Family("Jamba", re.compile(r"jamba"), ("JambaForCausalLM",), "jamba", None),
    Family(
        "Hunyuan A13B",
        re.compile(r"hunyuan-?a13b"),
        ("HunYuanMoEV1ForCausalLM",),
        "hunyuan_a13b",
        "hunyuan_a13b",
    ),
    Family(
        "Nemotron 3",
        re.compile(r"nemotron-?3"),
        ("NemotronHForCausalLM",),
        "qwen3_coder",
        "nemotron_v3",
        ("<function=",),
    ),
    Family(
        "ERNIE 4.5 Thinking",
        re.compile(r"ernie-?4\.5.*thinking"),
        ("Ernie4_5_MoeForCausalLM",),
        "ernie45",
        "ernie45",
        ("<think>",),
    ),
    Family("LongCat", re.compile(r"longcat"), ("LongcatFlashForCausalLM",), "longcat", None),
)
