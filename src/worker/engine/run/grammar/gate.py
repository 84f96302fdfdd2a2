"""The gate in front of vLLM's client: what both paths generate passes it."""

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncGenerator, Callable
from functools import partial
from http import HTTPStatus
from typing import Any

from vllm.exceptions import GracefulHTTPError, VLLMValidationError
from vllm.v1.structured_output.backend_xgrammar import XgrammarBackend
from vllm.v1.structured_output.utils import grammar_is_likely_lark

from worker.engine.run.grammar.trial import Grammar, Trial
from worker.engine.seam.patches import GENERATE
from worker.engine.seam.protocols import Client, RequestOutput, Tokenizer
from worker.errors import EngineBusy
from worker.settings import Settings

# Characters of a JSON schema that is not tried out if it has no word of the second line.
SMALL = 1_000
COSTLY = ("pattern", "$ref", "Length", "Items", "nProperties", "xProperties", "format")

# Seconds of one core from which grammars go to the core one at a time.
SLOW_S = 0.1
# How many of them are remembered as compiled.
MOST_COMPILED = 1_000
# The limit where the core has one thread to compile in, so that all others wait.
ONE_THREAD_S = 2.0
ONE_THREAD_CPUS = 2

REASONS = {
    "slow": "it takes too long to compile or to follow: at most {limit:g} s (STRUCTURED_COMPILE_S)",
    "large": "it takes too much memory to compile",
    "nothing": "nothing satisfies it",
    "failed": "it can't be compiled: perhaps counts in it are too large",
}

Outputs = AsyncGenerator[RequestOutput, None]


class Gate:
    """Takes the place of ``generate`` of vLLM's client. Use on the engine's loop.

    Args:
        client: vLLM's, of one core.
        trial: where grammars are compiled first; None if they are not.
    """

    def __init__(self, client: Client, trial: Trial | None) -> None:
        self._trial = trial
        config = client.vllm_config.structured_outputs_config
        self._compact = bool(config.disable_any_whitespace)
        # Slow grammars that this core has compiled; it keeps them.
        self._compiled: set[bytes] = set()
        self._turn = asyncio.Lock()
        # Both paths call this one.
        self._generate = GENERATE.replace(client, self.generate)

    def generate(self, prompt: Any, sampling_params: Any, *args: Any, **options: Any) -> Outputs:
        """See vLLM's ``AsyncLLM.generate``."""
        structured = getattr(sampling_params, "structured_outputs", None)
        grammar = _grammar(structured, compact=self._compact) if structured else None
        outputs = partial(self._generate, prompt, sampling_params, *args, **options)
        return self._held(grammar, outputs) if structured else outputs()

    async def _held(self, grammar: Grammar | None, outputs: Callable[[], Outputs]) -> Outputs:
        """Yield the outputs of a request that is held to something.

        Raises:
            Exception: vLLM's own for a refused request.
        """
        if self._trial and grammar:
            try:
                result = await self._trial.of(grammar)
            except EngineBusy as busy:
                # vLLM's server, which calls this, answers its own errors only.
                unavailable = HTTPStatus.SERVICE_UNAVAILABLE
                raise GracefulHTTPError(busy.message, unavailable) from busy
            if result.outcome in REASONS:
                raise _refusal(REASONS[result.outcome].format(limit=self._trial.limit_s))
            if result.seconds > SLOW_S:
                await self._enter(grammar.key, result.seconds)
        async with contextlib.aclosing(outputs()) as generated:
            async for output in generated:
                if any(choice.finish_reason == "error" for choice in output.outputs):
                    raise _refusal(REASONS["nothing"])
                yield output

    async def _enter(self, key: bytes, seconds: float) -> None:
        """Wait until the core compiles nothing else that is slow."""
        if key in self._compiled:
            return
        await self._turn.acquire()
        if key in self._compiled:
            self._turn.release()
            return
        if len(self._compiled) >= MOST_COMPILED:
            self._compiled.clear()
        self._compiled.add(key)
        # The core does not tell when it has compiled; it took this long before.
        asyncio.get_running_loop().call_later(seconds, self._turn.release)


def trial_for(client: Client, settings: Settings) -> Trial | None:
    """Return where grammars are compiled first; None if vLLM's core alone compiles them."""
    config = client.vllm_config
    limit_s = settings.structured_compile_s
    if "structured_compile_s" not in settings.model_fields_set:
        limit_s = ONE_THREAD_S if (os.cpu_count() or 1) <= ONE_THREAD_CPUS else limit_s
    tokenizer = client.renderer.tokenizer
    # Another backend compiles in ways of its own.
    xgrammar = config.structured_outputs_config.backend == "xgrammar"
    if not (limit_s and xgrammar and tokenizer):
        return None
    vocabulary = client.model_config.get_vocab_size()
    return Trial(partial(_description, config, tokenizer, vocabulary), limit_s)


def _grammar(structured: Any, *, compact: bool) -> Grammar | None:
    """Return what vLLM will compile; None if it certainly takes no time."""
    if structured.json is not None:
        given = structured.json
        spec = given if isinstance(given, str) else json.dumps(given)
        trivial = len(spec) < SMALL and not any(word in spec for word in COSTLY)
        return None if trivial else Grammar("json", spec, compact)
    if structured.regex is not None:
        return Grammar("regex", structured.regex)
    if structured.grammar is not None:
        lark = grammar_is_likely_lark(structured.grammar)
        return Grammar("lark" if lark else "ebnf", structured.grammar)
    if structured.structural_tag is not None:
        return Grammar("structural_tag", structured.structural_tag)
    return None


def _refusal(reason: str) -> Exception:
    message = f"structured output: {reason}"
    error: Exception = VLLMValidationError(message, parameter="structured_outputs")
    return error


def _description(config: Any, tokenizer: Tokenizer, vocabulary: int) -> str:
    """Describe the tokenizer to xgrammar, as vLLM does."""
    backend = XgrammarBackend(config, tokenizer=tokenizer, vocab_size=vocabulary)
    # A compiler does not show its tokenizer, what it has compiled does.
    compiled = backend.compiler.compile_grammar('root ::= "a"')
    description: str = compiled.tokenizer_info.serialize_json()
    return description
