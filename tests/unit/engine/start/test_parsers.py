"""The choice of parsers for a model by its architecture, its chat template and its name."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.doctor import CPU, candidate, options
from support.settings import start_on

from worker.doctor import engines
from worker.doctor.findings import Level
from worker.engine.arguments import EngineArguments
from worker.engine.options.combinations import REASONING_PARSER, TOOL_PARSER
from worker.engine.start.parsers import choose_family, parser_hints, with_parsers

# Names of models with their parsers, and chat templates with their families.
CASES: dict[str, Any] = json.loads(Path(__file__).with_name("parsers.json").read_text())
QWEN3 = "Qwen3ForCausalLM"
CHATML, HYBRID, CODER = (
    next(template for _, template, title in CASES["families"] if title == family)
    for family in ("Qwen3 Instruct", "Qwen3", "Qwen3-Coder")
)
AUTO = {"TOOL_CALL_PARSER": "auto", "REASONING_PARSER": "auto"}


@pytest.mark.parametrize(("name", "tools", "reasoning"), CASES["names"])
def test_a_name_alone_implies_parsers(name: str, tools: str | None, reasoning: str | None) -> None:
    found = choose_family(name, (), None)
    assert (found.parser_name(TOOL_PARSER), found.parser_name(REASONING_PARSER)) == (
        tools,
        reasoning,
    )


@pytest.mark.parametrize(("architecture", "template", "family"), CASES["families"])
def test_a_fine_tune_belongs_to_its_family(architecture: str, template: str, family: str) -> None:
    found = choose_family("me/my-qwen3-coder-gemma4", [architecture], template)
    assert found.family is not None
    assert found.family.title == family


def test_an_unknown_chat_template_gets_no_parser_of_its_models_family() -> None:
    found = choose_family("Qwen/Qwen3-8B", [QWEN3], "{% for message in messages %}{% endfor %}")
    assert found.family is None
    assert "its chat template" in found.reason


def test_a_name_implies_no_family_if_the_architecture_differs() -> None:
    assert choose_family("me/Qwen3-clone", ["OPTForCausalLM"], None).family is None
    # Without a template, neither this name nor this architecture determines the family.
    assert choose_family("me/my-qwen3", ["LlamaForCausalLM"], None).family is None
    by_architecture = choose_family("me/mine", ["SeedOssForCausalLM"], None)
    assert by_architecture.parser_name(TOOL_PARSER) == "seed_oss"
    assert choose_family("google/gemma-3-1b-it", ["Gemma3ForCausalLM"], None).family is None


@pytest.fixture
def hybrid(tmp_path: Path) -> Path:
    """A directory with the configuration and chat template of a model that thinks on demand."""
    (tmp_path / "config.json").write_text(json.dumps({"architectures": [QWEN3]}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": HYBRID}))
    return tmp_path


def parse_arguments(place: Path, **settings: str) -> EngineArguments:
    return options(CPU).parse_engine_settings({"MODEL": str(place), **settings}).arguments


def chosen_parsers(place: Path, **settings: str) -> tuple[str | None, str | None, bool]:
    """Return the parsers for tools and reasoning, and whether automatic tool choice is enabled."""
    vllms = with_parsers(parse_arguments(place, **settings), start_on(CPU)).vllm_args
    return (
        vllms.tool_call_parser or None,
        vllms.reasoning_parser or None,
        vllms.enable_auto_tool_choice,
    )


def test_auto_becomes_the_parsers_of_the_models_family(hybrid: Path) -> None:
    assert chosen_parsers(hybrid, **AUTO) == ("hermes", "qwen3", True)
    assert [*parser_hints(parse_arguments(hybrid, **AUTO).vllm_args)] == [
        f"TOOL_CALL_PARSER=hermes, REASONING_PARSER=qwen3: Qwen3, by {QWEN3} and its chat template"
    ]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        pytest.param({"CHAT_TEMPLATE": CHATML}, ("hermes", None, True), id="a template"),
        pytest.param(
            {"TOOL_CALL_PARSER": "jamba", "ENABLE_AUTO_TOOL_CHOICE": "1"},
            ("jamba", "qwen3", True),
            id="a parser",
        ),
        pytest.param({"ENABLE_AUTO_TOOL_CHOICE": "0"}, ("hermes", "qwen3", False), id="no tools"),
    ],
)
def test_settings_of_the_operator_override_auto(
    hybrid: Path, settings: dict[str, str], expected: tuple[str | None, str | None, bool]
) -> None:
    assert chosen_parsers(hybrid, **{**AUTO, **settings}) == expected


def test_a_chat_template_in_a_separate_file_is_used(hybrid: Path) -> None:
    (hybrid / "chat_template.jinja").write_text(CODER)
    assert chosen_parsers(hybrid, **AUTO) == ("qwen3_coder", None, True)


def test_hints_name_the_parsers_that_are_not_set(hybrid: Path) -> None:
    assert [
        line.rpartition("=")[2] for line in parser_hints(parse_arguments(hybrid).vllm_args)
    ] == ["hermes", "qwen3"]
    (line,) = parser_hints(parse_arguments(hybrid, REASONING_PARSER="deepseek_r1").vllm_args)
    assert line.endswith("TOOL_CALL_PARSER=hermes")


def test_a_model_of_no_family_starts_without_a_parser(demo_model: Path) -> None:
    plain = "{% for message in messages %}{{ message.content }}{% endfor %}"
    unknown = {**AUTO, "CHAT_TEMPLATE": plain}
    assert chosen_parsers(demo_model, **unknown) == (None, None, False)
    (line,) = parser_hints(parse_arguments(demo_model, **unknown).vllm_args)
    assert line.startswith("TOOL_CALL_PARSER=none, REASONING_PARSER=none: no family")


def test_the_doctor_reports_the_parsers_that_auto_selects() -> None:
    (found,) = engines.report_parsers(candidate(TOOL_CALL_PARSER="auto"))
    # Only config.json is known, and the model is called org/name.
    assert found.level is Level.WARN
    assert found.text.startswith("TOOL_CALL_PARSER=none: no family")
    named = candidate(TOOL_CALL_PARSER="auto", SERVED_MODEL_NAME="x", MODEL="me/Llama-3.1-mine")
    (found,) = engines.report_parsers(named)
    assert (found.level, "llama3_json" in found.text) == (Level.OK, True)
    assert [*engines.report_parsers(candidate())] == []
