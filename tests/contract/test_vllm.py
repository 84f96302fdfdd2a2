"""Tests of names and behaviours of vLLM that the worker relies on; new releases fail here first."""

import inspect
import itertools
import re
import sys
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import vllm
from support.releases import needs_pinned_vllm, needs_vllm
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest, ChatMessage
from vllm.exceptions import VLLMError, VLLMValidationError
from vllm.sampling_params import RepetitionDetectionParams, SamplingParams
from vllm.v1.core.sched.utils import check_sequence_repetition
from vllm.v1.engine.exceptions import EngineDeadError

from trainer.rows import ChatRow, parse_row
from worker.engine import options
from worker.engine.options import EXCLUDED_OPTIONS
from worker.engine.run import sampling
from worker.engine.seam import translation
from worker.engine.seam.locations import LOCATIONS, VllmNameNotFound, import_from_vllm
from worker.engine.start.parsers import FAMILIES
from worker.errors import EngineBusy, EngineDead, InvalidInput, RefusedByEngine
from worker.limits.work import comparisons_per_step
from worker.logs.reader import WRAPPER_ERRORS


def test_vllm_is_imported_from_this_environment() -> None:
    # The environment of `nox -s vllm` also finds the packages of .venv, after its own.
    assert Path(vllm.__file__).is_relative_to(sys.prefix)


@pytest.mark.parametrize("name", sorted(LOCATIONS))
def test_every_name_is_at_one_of_its_known_locations(name: str) -> None:
    assert import_from_vllm(name) is not None


def test_a_moved_name_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LOCATIONS, "Gone", ("vllm.not_there", "vllm.config"))
    with pytest.raises(
        VllmNameNotFound, match=r"vllm.not_there, vllm.config: update .*locations.py"
    ):
        import_from_vllm("Gone")


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("build_app", ["args", "supported_tasks", "model_config"]),
        ("init_app_state", ["engine_client", "state", "args", "supported_tasks"]),
    ],
)
def test_the_functions_that_build_vllms_app_have_the_expected_parameters(
    name: str, parameters: list[str]
) -> None:
    assert (
        list(inspect.signature(import_from_vllm(name)).parameters)[: len(parameters)] == parameters
    )


def vllm_errors(base: type[Exception]) -> list[type[Exception]]:
    return [base, *(leaf for child in base.__subclasses__() for leaf in vllm_errors(child))]


def test_every_error_of_vllm_has_a_translation_or_is_a_known_defect() -> None:
    defects = {"VLLMError", "VLLMServerError", "EngineGenerateError", "GenerationError"}
    known = tuple(class_ for class_, _ in translation.TRANSLATIONS)
    ours = [class_ for class_ in vllm_errors(VLLMError) if class_.__module__[:4] == "vllm"]
    assert {class_.__name__ for class_ in ours if not issubclass(class_, known)} <= defects
    assert len(ours) > len(defects)


def test_no_translation_is_hidden_by_an_earlier_one() -> None:
    classes = [class_ for class_, _ in translation.TRANSLATIONS if isinstance(class_, type)]
    assert classes == [
        class_
        for index, class_ in enumerate(classes)
        if not issubclass(class_, tuple(classes[:index]))
    ]


def test_a_translated_error_has_its_message_without_the_refused_value() -> None:
    error = translation.translate_error(
        VLLMValidationError("too long", parameter="prompt", value="s3")
    )
    assert isinstance(error, RefusedByEngine)
    assert (error.status, error.param, error.message) == (400, "prompt", "too long")
    assert isinstance(translation.translate_error(EngineDeadError()), EngineDead)


@pytest.mark.parametrize(
    ("error", "is_dead", "raised"),
    [
        (KeyError("defect"), False, KeyError),
        (ValueError("refused"), False, InvalidInput),
        (KeyError("defect"), True, EngineDead),
        (ValueError("refused"), True, EngineDead),
        (EngineBusy("full"), True, EngineDead),
    ],
)
def test_a_defect_is_not_a_refusal_and_a_dead_engine_always_raises_engine_dead(
    error: Exception, is_dead: bool, raised: type[Exception]
) -> None:
    with pytest.raises(raised), translation.translate_errors(SimpleNamespace(errored=is_dead)):
        raise error


@needs_pinned_vllm
def test_every_internal_field_and_excluded_option_exists_in_vllm() -> None:
    assert set(SamplingParams.__struct_fields__) >= sampling.INTERNAL_FIELDS
    dests = {action.dest for action in options.Options()._parser._actions}
    # This option is the platform's, not vLLM's.
    assert EXCLUDED_OPTIONS - dests == {"port_health"}


@pytest.mark.parametrize("words", WRAPPER_ERRORS)
def test_the_wrapper_errors_are_messages_in_the_source_of_vllm(words: str) -> None:
    """Otherwise the worker reports a wrapper error instead of the first error of a dead core."""
    error, text = words.split(": ", 1)
    sources = [path.read_text() for path in (Path(vllm.__file__).parent / "v1").rglob("*.py")]
    assert any(re.search(rf"{error}\(\s*f?\"{re.escape(text)}", source) for source in sources)


@needs_vllm("0.32", "the families are those of vLLM 0.32")
def test_every_parser_and_architecture_of_the_families_exists_in_vllm() -> None:
    for name in {family.tools for family in FAMILIES} - {None}:
        import_from_vllm("ToolParserManager").get_tool_parser(name)
    for name in {family.reasoning for family in FAMILIES} - {None}:
        import_from_vllm("ReasoningParserManager").get_reasoning_parser(name)
    named = {name for family in FAMILIES for name in family.architectures}
    assert named <= {*import_from_vllm("ModelRegistry").get_supported_archs()}


class CountingTokens(list[int]):
    """Tokens that count how often one of them is read."""

    reads = 0

    def __getitem__(self, index: Any) -> Any:
        self.reads += 1
        return super().__getitem__(index)


def test_the_detection_of_repetitions_compares_no_more_tokens_than_the_limit_assumes() -> None:
    worst = 0.0
    for largest, smallest, count, period in itertools.product(
        (4, 16, 40), (0, 2, 12), (2, 3, 8), (3, 17, 23, 61, 119, 400)
    ):
        if smallest > largest:
            continue
        params = RepetitionDetectionParams(largest, smallest, count)
        expected = comparisons_per_step(asdict(params))
        for length in range(largest * count, largest * count + period, 7):
            tokens = CountingTokens([number % period == 0 for number in range(length)])
            check_sequence_repetition(tokens, params)
            # For each size, it also reads the token to compare with, once for each of its places.
            own = sum(range(max(1, smallest), largest + 1))
            assert tokens.reads <= expected + own, params
            worst = max(worst, tokens.reads / (expected + own))
    # The limit isn't far above the worst case, either.
    assert worst > 0.4


@needs_pinned_vllm
@pytest.mark.parametrize("reasoning", [None, "", "a"])
@pytest.mark.parametrize("reasoning_content", [None, "", "b"])
def test_a_training_reads_the_same_reasoning_as_vllms_server(
    reasoning: str | None, reasoning_content: str | None
) -> None:
    user, answer = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}
    keys = {"reasoning": reasoning, "reasoning_content": reasoning_content}
    request = ChatCompletionRequest.model_validate(
        {"model": "demo", "messages": [user, {**answer, **keys}]}
    )
    row = parse_row({"messages": [user, {**answer, **keys}]})
    assert isinstance(row, ChatRow)
    served: Any = request.messages[1]
    assert row.messages[1].get("reasoning") == served.get("reasoning")


def test_a_training_reads_the_message_of_an_answer_of_vllms_server() -> None:
    user, answer = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}
    dumped = ChatMessage(**answer).model_dump()
    assert dumped.keys() > answer.keys()
    assert parse_row({"messages": [user, dumped]}) == parse_row({"messages": [user, answer]})
