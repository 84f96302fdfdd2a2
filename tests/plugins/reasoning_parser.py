"""A plugin as operators write them: reasoning that ends at the first comma."""

from vllm.reasoning import ReasoningParserManager
from vllm.reasoning.deepseek_r1_reasoning_parser import DeepSeekR1ReasoningParser


@ReasoningParserManager.register_module("until_comma")
class UntilComma(DeepSeekR1ReasoningParser):  # type: ignore[misc]  # vLLM is Any to mypy
    @property
    def start_token(self) -> str:
        return "<|im_start|>"

    @property
    def end_token(self) -> str:
        return ","
