"""Tests of vLLM's parsers with several tokens at a time, as in merged outputs of a stream."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from support import ROOT
from support.parsers.samples import (
    ROME,
    TABLE,
    THOUGHTS,
    Kind,
    Sample,
    find_syntaxes,
    samples_of_reasoning,
    samples_of_tools,
)
from support.parsers.streams import (
    Difference,
    Harm,
    Model,
    compare,
    compare_reasoning,
    compare_tools,
    make_tokenizer,
    models_of_reasoning,
    models_of_tools,
    registered_names,
)
from support.releases import needs_pinned_vllm
from vllm.entrypoints.generate.base.protocol import (
    DeltaFunctionCall,
    DeltaMessage,
    DeltaToolCall,
)

from worker.engine.run.corrections import send_withheld_text
from worker.engine.run.requests.due_outputs import (
    SINGLE_TOKEN_REASONING_PARSERS,
    SINGLE_TOKEN_TOOL_PARSERS,
)

# Parsers change with each release, and the tables are for one.
pytestmark = needs_pinned_vllm

ENGINE = "white space before a text moves to its end or is lost, if the text and a call are merged"
BEGIN = "a begin of reasoning becomes a part of it"

# Parsers that give other answers if tokens are merged, so that the worker merges none.
TOKEN_BY_TOKEN: dict[Kind, dict[str, str]] = {
    "tools": SINGLE_TOKEN_TOOL_PARSERS,
    "reasoning": SINGLE_TOKEN_REASONING_PARSERS,
}
# Parsers that give the same answers unless the first token is merged with the second. The worker
# never merges it.
FIRST_TOKEN_ALONE: dict[Kind, dict[str, str]] = {
    "tools": {},
    "reasoning": {
        "deepseek_r1": BEGIN,
        "deepseek_v3": BEGIN,
        "holo2": BEGIN,
        "hy_v3": BEGIN,
        "hy_v4": BEGIN,
        "poolside_v1": BEGIN,
    },
}
# Parsers that give answers with other white space before or after the text.
OTHER_SPACES: dict[Kind, dict[str, str]] = {
    "tools": {
        **dict.fromkeys(
            "deepseek_v32 deepseek_v4 deepseek_v41 gemma4 glm45 glm47 granite kimi_k2 ling3 mimo"
            " minimax_m2 minimax_m3 mistral plamo3 qwen3_coder qwen3_xml seed_oss step3p5".split(),
            ENGINE,
        ),
        "granite4": "white space between calls is lost, if they are merged",
    },
    "reasoning": {},
}
# Parsers that need a package that is not installed, and the package. With cohere_melody 0.15.3,
# which parses text that it has buffered itself, no answer differs.
NOT_INSTALLED = {"cohere_command3": "cohere_melody", "cohere_command4": "cohere_melody"}
TABLES = {
    Harm.ANY_TOKEN: TOKEN_BY_TOKEN,
    Harm.FIRST_TOKEN: FIRST_TOKEN_ALONE,
    Harm.SPACES: OTHER_SPACES,
}
JOBS_PAGE = ROOT / "docs" / "reference" / "jobs.md"
PARSER_SETTINGS: dict[Kind, str] = {"tools": "TOOL_CALL_PARSER", "reasoning": "REASONING_PARSER"}
KINDS: tuple[Kind, ...] = ("tools", "reasoning")
ALL = [(kind, name) for kind in KINDS for name in registered_names(kind)]
INSTALLED = [(kind, name) for kind, name in ALL if name not in NOT_INSTALLED]
TOOLS = [name for kind, name in INSTALLED if kind == "tools"]
REASONING = [name for kind, name in INSTALLED if kind == "reasoning"]


@pytest.fixture(autouse=True)
def _prepare(demo_model: object) -> None:
    """Make the demo model, and stream as the worker does."""
    send_withheld_text()


def listed_harm(kind: Kind, name: str) -> Harm:
    return max((harm for harm in TABLES if name in TABLES[harm][kind]), default=Harm.NONE)


def check(kind: Kind, name: str, differences: list[Difference]) -> None:
    """Compare the harm that merging does with the tables."""
    expected = listed_harm(kind, name)
    worst = max(differences, key=lambda difference: difference.harm, default=None)
    found = worst.harm if worst else Harm.NONE
    assert found == expected, (
        f"The tables of this test say {expected.name} of the parser {name!r} ({kind}), and the"
        f" comparison says {found.name}: {worst}"
    )


@pytest.mark.parametrize(("kind", "name"), ALL)
def test_each_parser_has_samples(kind: Kind, name: str) -> None:
    assert find_syntaxes(kind, name), (
        f"vLLM has a parser {name!r} ({kind}). Add its name to a row of {TABLE}, or add a row."
    )


def test_the_tables_list_only_parsers_of_vllm_and_each_in_one() -> None:
    listed = [(kind, name) for table in TABLES.values() for kind in KINDS for name in table[kind]]
    rows = {(kind, name) for kind in KINDS for name in names_with_samples(kind)}
    assert len(listed) == len(set(listed))
    assert {*listed, *rows} <= {*ALL}


@pytest.mark.parametrize(("kind", "setting"), PARSER_SETTINGS.items())
def test_the_page_names_the_parsers_that_read_single_tokens(kind: Kind, setting: str) -> None:
    (item,) = [line for line in JOBS_PAGE.read_text().splitlines() if f"if `{setting}` is" in line]
    names = item.partition(f"if `{setting}` is one of ")[2]
    assert re.findall(r"`([^`]+)`", names) == [*TOKEN_BY_TOKEN[kind]]


def names_with_samples(kind: Kind) -> set[str]:
    return {name for name in registered_names(kind) if find_syntaxes(kind, name)}


@pytest.mark.parametrize("name", TOOLS)
def test_a_sample_with_a_call_is_one_to_its_parser(name: str) -> None:
    for syntax, model in models_of_tools(name):
        sample = next(sample for sample in samples_of_tools(syntax) if sample.calls == (ROME,))
        calls = model.parse(sample, syntax.prompts[0]).calls
        assert [(tool, json.loads(arguments)) for _, _, tool, arguments in calls] == [ROME]


@pytest.mark.parametrize("name", REASONING)
def test_a_sample_with_reasoning_has_reasoning_to_its_parser(name: str) -> None:
    for syntax, tools, model in models_of_reasoning(name):
        if tools is None:
            answer = model.parse(next(samples_of_reasoning(syntax)), syntax.prompts[0])
            # This parser makes the reasoning a part of the text.
            with_text = name == "minimax_m2_append_think"
            assert THOUGHTS in (answer.content if with_text else answer.reasoning)


@pytest.mark.slow
@pytest.mark.parametrize("name", TOOLS)
def test_calls_of_merged_tokens_differ_only_for_listed_parsers(name: str) -> None:
    check("tools", name, list(compare_tools(name)))


@pytest.mark.slow
@pytest.mark.parametrize("name", REASONING)
def test_reasoning_of_merged_tokens_differs_only_for_listed_parsers(name: str) -> None:
    # Differences that a tool parser makes without reasoning are not those of the reasoning parser.
    differences = [
        difference
        for tools, difference in compare_reasoning(name)
        if tools is None or difference.harm > listed_harm("tools", tools)
    ]
    check("reasoning", name, differences)


@pytest.mark.parametrize(("name", "package"), NOT_INSTALLED.items())
def test_parsers_without_their_package_are_not_usable(name: str, package: str) -> None:
    for models in (models_of_tools(name), models_of_reasoning(name)):
        with pytest.raises(ImportError, match=package):
            next(models)


@dataclass
class Reader:
    """A parser that calls a function with each output: its text, its tokens, and its number."""

    read: Callable[[str, int, int], Any]
    outputs: int = 0

    def parse_delta(self, text: str, ids: list[int], *_: object, finished: bool) -> Any:
        self.outputs += 1
        return self.read(text, len(ids), self.outputs)


class ReadModel(Model):
    """A model whose outputs another parser reads."""

    def __init__(self, read: Callable[[str, int, int], Any]) -> None:
        super().__init__(make_tokenizer(), "hermes")
        self._read = read

    def _make_parser(self, request: Any) -> Any:
        return Reader(self._read) if hasattr(self, "_read") else super()._make_parser(request)


def say(text: str) -> Any:
    return DeltaMessage(content=text)


def call(text: str, number: int = 1) -> Any:
    """Return the part of a call, which has a name and an id if it is the first."""
    first = {"id": "a", "function": DeltaFunctionCall(name="now", arguments=text)}
    later = {"function": DeltaFunctionCall(arguments=text)}
    return DeltaMessage(tool_calls=[DeltaToolCall(index=0, **(first if number == 1 else later))])


def refuse(text: str, count: int, number: int) -> Any:
    if count > 1:
        raise ValueError("several tokens")
    return say(text)


READERS: dict[str, tuple[Callable[[str, int, int], Any], Harm]] = {
    "a text": (lambda text, count, number: say(text), Harm.NONE),
    "a call": (lambda text, count, number: call(text, number), Harm.NONE),
    "loses text": (lambda text, count, _: say(text if count == 1 else text[:-1]), Harm.ANY_TOKEN),
    "loses arguments": (
        lambda text, count, number: call(text if count == 1 else "", number),
        Harm.ANY_TOKEN,
    ),
    "gives ids to all parts": (lambda text, count, number: call(text), Harm.ANY_TOKEN),
    "takes text for a call": (
        lambda text, count, _: say(text) if count == 1 else call(text),
        Harm.ANY_TOKEN,
    ),
    "raises an error": (refuse, Harm.ANY_TOKEN),
    "loses the first token": (
        lambda text, count, number: say("" if number == 1 and count > 1 else text),
        Harm.FIRST_TOKEN,
    ),
    "loses a space": (
        lambda text, count, _: say(text if count == 1 else text.removeprefix("\n")),
        Harm.SPACES,
    ),
}


@pytest.mark.parametrize(("read", "harm"), READERS.values(), ids=READERS)
def test_a_parser_that_reads_single_tokens_is_found(
    read: Callable[[str, int, int], Any], harm: Harm
) -> None:
    differences = compare(ReadModel(read), Sample("text", "\nI look it up."), "a parser")
    assert max((difference.harm for difference in differences), default=Harm.NONE) == harm
