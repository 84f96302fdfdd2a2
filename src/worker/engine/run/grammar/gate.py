"""A gate in front of vLLM's client, which checks the structured outputs of all requests."""

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncGenerator, Callable
from functools import partial
from http import HTTPStatus
from typing import Any

import xgrammar
from vllm.exceptions import GracefulHTTPError, VLLMValidationError
from vllm.v1.structured_output.backend_xgrammar import (
    XgrammarBackend,
    has_xgrammar_unsupported_json_features,
)
from vllm.v1.structured_output.utils import choice_as_grammar, grammar_is_likely_lark

from worker.engine.run.grammar.schemas import find_largest, find_places
from worker.engine.run.grammar.trial import Grammar, GrammarTester
from worker.engine.seam.patches import GENERATE
from worker.engine.seam.protocols import Client, RequestOutput, Tokenizer
from worker.engine.seam.translation import SOURCE_LOCATION
from worker.errors import EngineBusy
from worker.limits.work import (
    MAX_CHOICES_TOKEN_S,
    MAX_COMPILE_S,
    MAX_GRAMMAR_CHARACTERS,
    MAX_TOKEN_S,
    SINGLE_THREAD_COMPILE_S,
    SINGLE_THREAD_CPUS,
)

# JSON schemas with fewer characters skip the trial, unless they contain a costly keyword.
SMALL_SCHEMA_CHARACTERS = 1_000
COSTLY_KEYWORDS = ("pattern", "$ref", "Length", "Items", "nProperties", "xProperties", "format")

# Seconds of CPU time above which a grammar is slow; the core gets slow grammars one at a time.
SLOW_CPU_S = 0.1
# Maximum number of slow grammars to remember as compiled.
MAX_COMPILED = 1_000

REFUSAL_MESSAGES = {
    "slow": (
        "it takes more than {limit:g} s to compile, or {token:g} s to follow for a token: other "
        "requests would wait"
    ),
    "large": "it takes too much memory to compile",
    "nothing": "nothing satisfies it",
    "failed": "it can't be compiled: perhaps counts in it are too large",
}
SIZE_MESSAGE = "{size:,} characters, at most {limit:,}"
CHOICES_MESSAGE = (
    "it takes {step_s:.2g} s to follow for a token, times {choices} choices; at most {limit:g} s: "
    "ask for fewer choices"
)

# Beginnings of vLLM's messages that don't name the mistake in a schema.
UNSUPPORTED = "The provided JSON schema contains features not supported by xgrammar"
INVALID_TAG = "Invalid structural tag specification"
# Maximum characters of a schema whose refusal is explained: each schema in it is read.
MAX_EXPLAINED_CHARACTERS = 50_000

Stream = AsyncGenerator[RequestOutput, None]


class GrammarGate:
    """Tests the grammars of requests before vLLM's client gets them. Use on the engine's loop.

    Replaces the client's ``generate``. Without a tester, grammars are sent to the core directly.
    """

    def __init__(self, client: Client, tester: GrammarTester | None) -> None:
        self._tester = tester
        config = client.vllm_config.structured_outputs_config
        self._is_compact = bool(config.disable_any_whitespace)
        # Keys of the slow grammars that were sent to this core, which caches them.
        self._compiled_keys: set[bytes] = set()
        self._compile_lock = asyncio.Lock()
        # Raw jobs and vLLM's server both call this method of the client.
        self._generate = GENERATE.replace(client, self.generate)

    def generate(self, prompt: Any, sampling_params: Any, *args: Any, **options: Any) -> Stream:
        """See vLLM's ``AsyncLLM.generate``."""
        structured = getattr(sampling_params, "structured_outputs", None)
        if not structured:
            outputs: Stream = self._generate(prompt, sampling_params, *args, **options)
            return outputs
        grammar = _grammar_to_try(structured, is_compact=self._is_compact)
        generate = partial(self._generate, prompt, sampling_params, *args, **options)
        return self._generate_structured(structured, grammar, sampling_params.n, generate)

    async def _generate_structured(
        self,
        structured: Any,
        grammar: Grammar | None,
        choices: int,
        generate: Callable[[], Stream],
    ) -> Stream:
        """Yield the outputs of a request; raise vLLM's own exception if its grammar is refused."""
        if grammar:
            await self._check_grammar(grammar, choices)
        try:
            async with contextlib.aclosing(generate()) as outputs:
                async for output in outputs:
                    if any(choice.finish_reason == "error" for choice in output.outputs):
                        raise _refusal(REFUSAL_MESSAGES["nothing"])
                    yield output
        except VLLMValidationError as refused:
            if self._tester and (explained := explain_refusal(structured, str(refused.args[0]))):
                raise explained from refused
            raise

    async def _check_grammar(self, grammar: Grammar, choices: int) -> None:
        """Try a grammar, and wait until the core may compile it: one slow grammar at a time.

        vLLM's own exception refuses a grammar. The core does not wait for grammars that it has
        cached.
        """
        if (size := len(grammar.spec)) > MAX_GRAMMAR_CHARACTERS:
            message = SIZE_MESSAGE.format(size=size, limit=MAX_GRAMMAR_CHARACTERS)
            raise _refusal(message, find_largest(grammar.spec))
        if self._tester is None:
            return
        try:
            result = await self._tester.try_grammar(grammar)
        except EngineBusy as busy:
            # The caller can be vLLM's server, which handles only vLLM's own exceptions.
            unavailable = HTTPStatus.SERVICE_UNAVAILABLE
            raise GracefulHTTPError(busy.message, unavailable) from busy
        if result.outcome in REFUSAL_MESSAGES:
            message = REFUSAL_MESSAGES[result.outcome]
            place = result.place or find_largest(grammar.spec)
            limits = {"limit": self._tester.limit_s, "token": MAX_TOKEN_S}
            raise _refusal(message.format(**limits), place)
        if choices * (step_s := result.step_s) > MAX_CHOICES_TOKEN_S:
            limit = MAX_CHOICES_TOKEN_S
            message = CHOICES_MESSAGE.format(step_s=step_s, choices=choices, limit=limit)
            raise _refusal(message)
        key = grammar.cache_key
        if result.seconds <= SLOW_CPU_S or key in self._compiled_keys:
            return
        await self._compile_lock.acquire()
        if key in self._compiled_keys:
            self._compile_lock.release()
            return
        if len(self._compiled_keys) >= MAX_COMPILED:
            self._compiled_keys.clear()
        self._compiled_keys.add(key)
        # The core doesn't report the end of a compilation; it should take as long as the trial.
        asyncio.get_running_loop().call_later(result.seconds, self._compile_lock.release)


def create_grammar_tester(client: Client) -> GrammarTester | None:
    """Create the tester of grammars; None without a tokenizer, or without xgrammar."""
    config = client.vllm_config
    has_one_thread = (os.cpu_count() or 1) <= SINGLE_THREAD_CPUS
    limit_s = SINGLE_THREAD_COMPILE_S if has_one_thread else MAX_COMPILE_S
    tokenizer = client.renderer.tokenizer
    # The trial compiles with xgrammar only.
    is_xgrammar = config.structured_outputs_config.backend == "xgrammar"
    if not (is_xgrammar and tokenizer):
        return None
    vocabulary = client.model_config.get_vocab_size()
    return GrammarTester(partial(_describe_tokenizer, config, tokenizer, vocabulary), limit_s)


def explain_refusal(structured: Any, message: str) -> Exception | None:
    """Return vLLM's refusal of a schema with the tool, the property and the keywords.

    Returns None if ``message``, which is vLLM's own, is about something else.
    """
    if message.startswith(UNSUPPORTED) and structured.json is not None:
        spec = structured.json if isinstance(structured.json, str) else json.dumps(structured.json)
        return _explain_unsupported(spec)
    if message.startswith(INVALID_TAG):
        for place in find_places(structured.structural_tag):
            schema = place.schema.get("json_schema") or place.schema.get("schema")
            try:
                if isinstance(schema, dict):
                    xgrammar.Grammar.from_json_schema(schema)
            except (RuntimeError, ValueError) as error:
                reason = SOURCE_LOCATION.sub("", str(error)).strip()
                return _refusal(reason, place.description)
    return None


def _explain_unsupported(spec: str) -> Exception | None:
    if len(spec) > MAX_EXPLAINED_CHARACTERS:
        return None
    places = [
        one for one in find_places(spec) if has_xgrammar_unsupported_json_features(one.schema)
    ]
    if not places:
        return None
    # A schema comes before those in it, so the last one contains no other that is unsupported.
    place = places[-1]
    # The keywords without any of which xgrammar would enforce the schema.
    keywords = [
        repr(key)
        for key in place.schema
        if key != "type"
        and not has_xgrammar_unsupported_json_features(
            {name: place.schema[name] for name in place.schema if name != key}
        )
    ]
    together = " together" if len(keywords) > 1 else ""
    message = f"xgrammar can't enforce {' and '.join(keywords) or 'it'}{together}"
    return _refusal(message, place.description)


def _grammar_to_try(structured: Any, *, is_compact: bool) -> Grammar | None:
    """Return the grammar that vLLM will compile; None if it is sure to compile quickly."""
    if structured.json is not None:
        schema = structured.json
        spec = schema if isinstance(schema, str) else json.dumps(schema)
        is_trivial = len(spec) < SMALL_SCHEMA_CHARACTERS and not any(
            word in spec for word in COSTLY_KEYWORDS
        )
        return None if is_trivial else Grammar("json", spec, is_compact)
    if structured.regex is not None:
        return Grammar("regex", structured.regex)
    if structured.grammar is not None:
        is_lark = grammar_is_likely_lark(structured.grammar)
        return Grammar("lark" if is_lark else "ebnf", structured.grammar)
    if structured.structural_tag is not None:
        return Grammar("structural_tag", structured.structural_tag)
    if structured.choice:
        spec = choice_as_grammar(structured.choice)
        return Grammar("ebnf", spec) if len(spec) > SMALL_SCHEMA_CHARACTERS else None
    return None


def _refusal(reason: str, place: str = "") -> Exception:
    message = f"structured output: {place}: {reason}" if place else f"structured output: {reason}"
    error: Exception = VLLMValidationError(message, parameter="structured_outputs")
    return error


def _describe_tokenizer(config: Any, tokenizer: Tokenizer, vocabulary: int) -> str:
    """Return xgrammar's description of the tokenizer, the same that vLLM uses."""
    backend = XgrammarBackend(config, tokenizer=tokenizer, vocab_size=vocabulary)
    # A compiler does not expose its tokenizer, but a compiled grammar does.
    compiled = backend.compiler.compile_grammar('root ::= "a"')
    description: str = compiled.tokenizer_info.serialize_json()
    return description
