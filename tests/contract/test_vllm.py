"""The names and behaviours of vLLM that the worker relies on: new releases fail here first."""

import inspect
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import vllm
from support.releases import of_the_pinned, since
from vllm.exceptions import VLLMError, VLLMValidationError
from vllm.sampling_params import SamplingParams
from vllm.v1.engine.exceptions import EngineDeadError

from worker.engine import options
from worker.engine.options.excluded import DENIED
from worker.engine.run.generation import sampling
from worker.engine.seam import translation
from worker.engine.seam.locations import LOCATIONS, MovedName, find
from worker.engine.start.parsers import FAMILIES
from worker.errors import EngineBusy, EngineDead, InvalidInput, RefusedByEngine
from worker.logs.reader import PASSED_ON


def test_the_installed_vllm_is_the_environments_own() -> None:
    # The environment of `make test-vllm` finds .venv's packages, too, after its own.
    assert Path(vllm.__file__).is_relative_to(sys.prefix)


@pytest.mark.parametrize("name", sorted(LOCATIONS))
def test_every_name_that_the_worker_uses_is_where_a_known_release_has_it(name: str) -> None:
    assert find(name) is not None


def test_a_name_that_moved_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LOCATIONS, "Gone", ("vllm.not_there", "vllm.config"))
    with pytest.raises(MovedName, match=r"vllm.not_there, vllm.config: mend .*locations.py"):
        find("Gone")


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("build_app", ["args", "supported_tasks", "model_config"]),
        ("init_app_state", ["engine_client", "state", "args", "supported_tasks"]),
    ],
)
def test_the_app_is_built_from_what_the_worker_passes(name: str, parameters: list[str]) -> None:
    assert list(inspect.signature(find(name)).parameters)[: len(parameters)] == parameters


def vllm_errors(base: type[Exception]) -> list[type[Exception]]:
    return [base, *(leaf for child in base.__subclasses__() for leaf in vllm_errors(child))]


def test_every_error_of_vllms_has_a_translation_or_is_a_defect_on_purpose() -> None:
    defects = {"VLLMError", "VLLMServerError", "EngineGenerateError", "GenerationError"}
    known = tuple(class_ for class_, _ in translation.TABLE)
    ours = [class_ for class_ in vllm_errors(VLLMError) if class_.__module__[:4] == "vllm"]
    assert {class_.__name__ for class_ in ours if not issubclass(class_, known)} <= defects
    assert len(ours) > len(defects)


def test_an_error_keeps_its_message_without_the_refused_value() -> None:
    error = translation.translate(VLLMValidationError("too long", parameter="prompt", value="s3"))
    assert isinstance(error, RefusedByEngine)
    assert (error.status, error.param, error.message) == (400, "prompt", "too long")
    assert isinstance(translation.translate(EngineDeadError()), EngineDead)


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
def test_a_defect_is_no_refusal_and_every_failure_of_a_dead_engine_is_its_death(
    error: Exception, is_dead: bool, raised: type[Exception]
) -> None:
    with pytest.raises(raised), translation.translated(SimpleNamespace(errored=is_dead)):
        raise error


@of_the_pinned
def test_every_name_kept_from_callers_and_operators_is_one_of_vllms() -> None:
    assert set(SamplingParams.__struct_fields__) >= sampling.INTERNAL
    dests = {action.dest for action in options.Options()._parser._actions}
    # The platform's.
    assert DENIED - dests == {"port_health"}


@pytest.mark.parametrize("words", PASSED_ON)
def test_what_a_core_passes_on_is_in_vllms_words(words: str) -> None:
    """Else a dead core's reason is not the first error that it printed, but what came of it."""
    error, text = words.split(": ", 1)
    sources = [path.read_text() for path in (Path(vllm.__file__).parent / "v1").rglob("*.py")]
    assert any(re.search(rf"{error}\(\s*f?\"{re.escape(text)}", source) for source in sources)


@since("0.32", "the families are those of vLLM 0.32")
def test_every_parser_and_architecture_of_the_families_is_one_of_vllms() -> None:
    for name in {family.tools for family in FAMILIES} - {None}:
        find("ToolParserManager").get_tool_parser(name)
    for name in {family.reasoning for family in FAMILIES} - {None}:
        find("ReasoningParserManager").get_reasoning_parser(name)
    named = {name for family in FAMILIES for name in family.architectures}
    assert named <= {*find("ModelRegistry").get_supported_archs()}
