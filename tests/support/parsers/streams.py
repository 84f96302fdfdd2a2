"""Streams of vLLM's parsers with one and with several tokens at a time, and how they differ."""

import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cache
from itertools import chain, pairwise, product, repeat
from types import SimpleNamespace
from typing import Any

from tokenizers import AddedToken, Tokenizer
from transformers import PreTrainedTokenizerFast
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.parser.harmony_utils import get_encoding
from vllm.parser.parser_manager import ParserManager
from vllm.reasoning import ReasoningParserManager
from vllm.tool_parsers import ToolParserManager
from vllm.v1.engine.detokenizer import FastIncrementalDetokenizer

from support import ROOT
from support.parsers.samples import (
    TOOLS,
    Kind,
    Sample,
    Syntax,
    find_syntaxes,
    samples_of_reasoning,
    samples_of_tools,
)

DEMO_TOKENIZER = ROOT / ".models" / "demo" / "tokenizer.json"

# How many tokens the first outputs of a merged stream have, and all later ones.
MERGED = (1, 3, 9, 27)
LATER = 50


def registered_names(kind: Kind) -> list[str]:
    """Return the names of the parsers that vLLM brings, without those of plugins."""
    manager = ToolParserManager if kind == "tools" else ReasoningParserManager
    return sorted(manager.lazy_parsers)


@cache
def _demo_tokenizer() -> str:
    return DEMO_TOKENIZER.read_text(encoding="utf-8")


def make_tokenizer(*rows: Syntax) -> Any:
    """Return the demo model's tokenizer with the tokens, and a template, of some rows."""
    tokenizer = Tokenizer.from_str(_demo_tokenizer())
    special = {token: row.special for row in reversed(rows) for token in row.tokens}
    for token, is_special in special.items():
        add = tokenizer.add_special_tokens if is_special else tokenizer.add_tokens
        add([AddedToken(token, normalized=False)])
    templates = [row.template for row in rows if row.template]
    config = {"response_template": templates[0]} if templates else {}
    make: Any = PreTrainedTokenizerFast
    return make(tokenizer_object=tokenizer, eos_token="<|im_end|>", **config)


@dataclass(frozen=True)
class StreamedAnswer:
    """The answer that a client has at the end of a stream.

    Args:
        content: The joined content.
        reasoning: The joined reasoning.
        calls: For each call its index, the number of its ids, its joined name and arguments.
        finish: The finish reason; "error" if the parser raised an exception.
    """

    content: str
    reasoning: str
    calls: tuple[tuple[int, int, str, str], ...]
    finish: str

    def is_same(self, other: "StreamedAnswer") -> bool:
        """Return whether a client would see no difference, except in the spaces of JSON."""
        return self._canonical() == other._canonical()

    def is_stripped_same(self, other: "StreamedAnswer") -> bool:
        """Return whether only white space before and after the texts differs."""
        return self._strip().is_same(other._strip())

    def _canonical(self) -> "StreamedAnswer":
        calls = tuple((*call[:3], _canonical_json(call[3])) for call in self.calls)
        return replace(self, calls=calls)

    def _strip(self) -> "StreamedAnswer":
        return replace(self, content=self.content.strip(), reasoning=self.reasoning.strip())


def _canonical_json(arguments: str) -> str:
    try:
        return json.dumps(json.loads(arguments))
    except ValueError:
        return arguments


# Tokens: the id and the text by which each extends the answer.
Tokens = Sequence[tuple[int, str]]


class Model:
    """vLLM's parsers of a model's outputs.

    Args:
        tokenizer: The model's tokenizer.
        tools: The name of a tool parser, or None.
        reasoning: The name of a reasoning parser, or None.
        kwargs: The chat_template_kwargs of the request.
        harmony: Whether the outputs have the encoding of gpt-oss.
    """

    def __init__(
        self,
        tokenizer: Any,
        tools: str | None = None,
        reasoning: str | None = None,
        kwargs: Mapping[str, Any] | None = None,
        harmony: bool = False,
    ) -> None:
        self.tokenizer = tokenizer
        self._kwargs = dict(kwargs or {})
        self._harmony = harmony
        self._class = ParserManager.get_parser(
            tools, reasoning, enable_auto_tools=True, is_harmony=harmony, tokenizer=tokenizer
        )
        request = ChatCompletionRequest.model_validate(
            {
                "messages": [{"role": "user", "content": "Hi"}],
                "tools": TOOLS if tools else None,
                "chat_template_kwargs": self._kwargs,
            }
        )
        if tools or reasoning:
            request = self._make_parser(request).adjust_request(request)
        self.request = request

    def _make_parser(self, request: Any) -> Any:
        kwargs = dict(self._kwargs)
        return self._class(self.tokenizer, request.tools, chat_template_kwargs=kwargs)

    def parse(self, sample: Sample, prompt: str = "") -> StreamedAnswer:
        """Return the answer without a stream."""
        text = sample.text.removeprefix(prompt)
        ids = [token for token, _ in self.generate(sample, prompt)]
        parser = self._make_parser(self.request)
        reasoning, content, calls = parser.parse(
            text, self.request, enable_auto_tools=True, model_output_token_ids=ids
        )
        joined = tuple((i, 1, call.name, call.arguments) for i, call in enumerate(calls or ()))
        return StreamedAnswer(
            content or "", reasoning or "", joined, "tool_calls" if joined else "stop"
        )

    def generate(self, sample: Sample, prompt: str = "") -> Tokens:
        """Return the tokens of a sample, as vLLM's detokenizer sends them one at a time."""
        text = sample.text.removeprefix(prompt)
        if self._harmony:
            ids = get_encoding().encode(text, allowed_special="all")
            return [(token, "") for token in self._until_limit(ids, sample)]
        ids = self.tokenizer.encode(text, add_special_tokens=False)
        detokenizer = self._make_detokenizer(prompt)
        tokens = []
        for token in self._until_limit(ids, sample):
            detokenizer.update([token], False)
            tokens.append((token, detokenizer.get_next_output_text(finished=False, delta=True)))
        # The text of the token that ends an answer is not a part of it.
        return tokens if sample.share < 1 else [*tokens, (self.tokenizer.eos_token_id, "")]

    def _until_limit(self, ids: Sequence[int], sample: Sample) -> Sequence[int]:
        return ids[: int(len(ids) * sample.share)]

    def _make_detokenizer(self, prompt: str) -> Any:
        params = self.request.to_sampling_params(1000, {})
        request = SimpleNamespace(
            request_id="a", sampling_params=params, prompt_token_ids=self.encode_prompt(prompt)
        )
        return FastIncrementalDetokenizer(self.tokenizer, request)

    def encode_prompt(self, prompt: str) -> list[int]:
        if self._harmony:
            ids: list[int] = get_encoding().encode("Hi" + prompt, allowed_special="all")
            return ids
        encoded: list[int] = self.tokenizer.encode("Hi\n" + prompt, add_special_tokens=False)
        return encoded

    def stream(
        self, tokens: Tokens, sizes: Iterable[int], prompt: str, *, cut: bool
    ) -> StreamedAnswer:
        """Return the answer that a client joins.

        Args:
            tokens: The generated tokens.
            sizes: How many of them each output has.
            prompt: The end of the prompt.
            cut: Whether the limit of tokens has ended the answer.
        """
        return reassemble(
            self._make_parser(self.request),
            self.request,
            self.encode_prompt(prompt),
            list(merge(tokens, sizes)),
            cut=cut,
        )


def merge(tokens: Tokens, sizes: Iterable[int]) -> Iterator[Tokens]:
    """Return outputs with several tokens."""
    start = 0
    for size in sizes:
        if start >= len(tokens):
            break
        yield tokens[start : start + size]
        start += size


def reassemble(
    parser: Any, request: Any, prompt: list[int], outputs: Sequence[Tokens], *, cut: bool
) -> StreamedAnswer:
    """Return the deltas of a parser, joined as a client joins them."""
    deltas = []
    finish = "length" if cut else "stop"
    for number, output in enumerate(outputs, 1):
        ids, texts = [token for token, _ in output], [text for _, text in output]
        finished = number == len(outputs)
        try:
            delta = parser.parse_delta("".join(texts), ids, request, prompt, finished=finished)
        except Exception:  # noqa: BLE001 - vLLM's server also catches all of them
            finish = "error"
            break
        if delta is not None:
            deltas.append(delta)
    pieces: dict[int, list[Any]] = {}
    for call in chain.from_iterable(delta.tool_calls or () for delta in deltas):
        pieces.setdefault(call.index, []).append(call)
    return StreamedAnswer(
        "".join(delta.content or "" for delta in deltas),
        "".join(delta.reasoning or "" for delta in deltas),
        tuple(_join_call(index, pieces[index]) for index in sorted(pieces)),
        "tool_calls" if pieces and finish == "stop" else finish,
    )


def _join_call(index: int, deltas: list[Any]) -> tuple[int, int, str, str]:
    functions = [delta.function for delta in deltas if delta.function]
    name = "".join(function.name or "" for function in functions)
    arguments = "".join(function.arguments or "" for function in functions)
    return index, sum(delta.id is not None for delta in deltas), name, arguments


@dataclass(frozen=True)
class Way:
    """A way to merge tokens: a description, and how many tokens each output has."""

    name: str
    sizes: Sequence[int]

    @property
    def is_first_alone(self) -> bool:
        """Whether the first token is not merged with others."""
        return self.sizes[0] == 1


def ways_to_merge(count: int, seeds: int) -> Iterator[Way]:
    """Return ways to merge some tokens; ``seeds`` random ones, with and without the first alone."""
    yield Way("1, 3, 9, 27, 50", [*MERGED, *repeat(LATER, count // LATER + 1)])
    yield Way("all", [count])
    yield Way("all after the first", [1, max(count - 1, 1)])
    for seed in range(seeds):
        # The first ways have few, the last have many cuts.
        cuts = random.Random(seed).sample(range(1, count), k=min(count - 1, 2 + 4 * seed))
        for first in ({1}, set()):
            ends = [0, *sorted({*cuts, *first}), count]
            name = f"seed {seed}" + (" after the first" if first else "")
            yield Way(name, [end - start for start, end in pairwise(ends)])


class Harm(IntEnum):
    """The harm that merging tokens may do to the answers of a parser."""

    NONE = 0
    SPACES = 1  # white space before or after a text is lost, or moved to its other end
    FIRST_TOKEN = 2  # answers are others, but only if the first token is merged with the second
    ANY_TOKEN = 3


@dataclass(frozen=True)
class Difference:
    """Outputs with several tokens that a client sees differently."""

    sample: Sample
    parsers: str
    prompt: str
    way: Way
    one_by_one: StreamedAnswer
    merged: StreamedAnswer

    @property
    def harm(self) -> Harm:
        if self.one_by_one.is_stripped_same(self.merged):
            return Harm.SPACES
        return Harm.ANY_TOKEN if self.way.is_first_alone else Harm.FIRST_TOKEN

    def __str__(self) -> str:
        return (
            f"{self.parsers}, prompt {self.prompt!r}, {self.sample.name!r}, tokens merged by"
            f" {self.way.name!r}:\n  one by one: {self.one_by_one}\n  merged:     {self.merged}"
        )


def compare(
    model: Model, sample: Sample, parsers: str, prompt: str = "", seeds: int = 2
) -> Iterator[Difference]:
    """Return the differences between a sample's stream token by token and merged streams."""
    tokens, cut = model.generate(sample, prompt), sample.share < 1
    expected = model.stream(tokens, repeat(1), prompt, cut=cut)
    for way in ways_to_merge(len(tokens), seeds):
        merged = model.stream(tokens, way.sizes, prompt, cut=cut)
        if not merged.is_same(expected):
            yield Difference(sample, parsers, prompt, way, expected, merged)


def compare_tools(name: str) -> Iterator[Difference]:
    """Return the differences of a tool parser."""
    for syntax, model in models_of_tools(name):
        for sample, prompt in product(samples_of_tools(syntax), syntax.prompts):
            yield from compare(model, sample, name, prompt)


def models_of_tools(name: str) -> Iterator[tuple[Syntax, Model]]:
    """Return the models whose calls a parser reads."""
    for syntax in find_syntaxes("tools", name):
        rows = [syntax, replace(syntax, tokens=())] if syntax.spelled else [syntax]
        for row in rows:
            yield row, Model(make_tokenizer(row), name, harmony=row.harmony)


def compare_reasoning(name: str) -> Iterator[tuple[str | None, Difference]]:
    """Return the tool parser that is combined with a reasoning parser, and a difference."""
    for syntax, tools, model in models_of_reasoning(name):
        calls = find_syntaxes("tools", tools)[0] if tools else None
        names = f"{name} with {tools}" if tools else name
        for sample, prompt in product(samples_of_reasoning(syntax, calls), syntax.prompts):
            found = compare(model, sample, names, prompt)
            yield from ((tools, difference) for difference in found)


def models_of_reasoning(name: str) -> Iterator[tuple[Syntax, str | None, Model]]:
    """Return the models whose reasoning a parser reads: the row, a tool parser, and the model."""
    for syntax in find_syntaxes("reasoning", name):
        for tools in (None, *syntax.tools):
            calls = find_syntaxes("tools", tools)[0] if tools else None
            tokenizer = make_tokenizer(syntax, *([calls] if calls else []))
            model = Model(tokenizer, tools, name, syntax.kwargs, harmony=syntax.harmony)
            yield syntax, tools, model
