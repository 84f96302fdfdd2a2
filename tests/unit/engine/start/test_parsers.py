"""Which parsers suit a model, by its architecture, its chat template and its name."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.doctor import CPU, candidate, options

from worker.doctor import checks
from worker.doctor.findings import Level
from worker.engine.arguments import EngineArguments, StartContext
from worker.engine.options.combinations import REASONING, TOOLS
from worker.engine.start.parsers import choose, told, with_parsers

# Names of models with their parsers, and what chat templates of families have.
KNOWN: dict[str, Any] = json.loads(Path(__file__).with_name("parsers.json").read_text())
QWEN3 = "Qwen3ForCausalLM"
CHATML, HYBRID, CODER = (
    next(template for _, template, title in KNOWN["families"] if title == family)
    for family in ("Qwen3 Instruct", "Qwen3", "Qwen3-Coder")
)
AUTO = {"TOOL_CALL_PARSER": "auto", "REASONING_PARSER": "auto"}


@pytest.mark.parametrize(("name", "tools", "reasoning"), KNOWN["names"])
def test_a_name_alone_implies_parsers(name: str, tools: str | None, reasoning: str | None) -> None:
    found = choose(name, (), None)
    assert (found.parser(TOOLS), found.parser(REASONING)) == (tools, reasoning)


@pytest.mark.parametrize(("architecture", "template", "family"), KNOWN["families"])
def test_a_fine_tune_belongs_to_its_family(architecture: str, template: str, family: str) -> None:
    found = choose("me/my-qwen3-coder-gemma4", [architecture], template)
    assert found.family is not None
    assert found.family.title == family


def test_a_template_that_no_family_has_is_not_read_by_a_parser_for_others() -> None:
    found = choose("Qwen/Qwen3-8B", [QWEN3], "{% for message in messages %}{% endfor %}")
    assert found.family is None
    assert "its chat template" in found.why


def test_a_name_does_not_make_a_family_of_another_architecture() -> None:
    assert choose("me/Qwen3-clone", ["OPTForCausalLM"], None).family is None
    # Its template isn't known, and the family is that of neither the name nor the architecture.
    assert choose("me/my-qwen3", ["LlamaForCausalLM"], None).family is None
    by_architecture = choose("me/mine", ["SeedOssForCausalLM"], None)
    assert by_architecture.parser(TOOLS) == "seed_oss"
    assert choose("google/gemma-3-1b-it", ["Gemma3ForCausalLM"], None).family is None


@pytest.fixture
def hybrid(tmp_path: Path) -> Path:
    """What is known of a model that thinks on demand: its configuration, and a tokenizer's."""
    (tmp_path / "config.json").write_text(json.dumps({"architectures": [QWEN3]}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": HYBRID}))
    return tmp_path


def read(place: Path, **settings: str) -> EngineArguments:
    return options(CPU).parse({"MODEL": str(place), **settings}).arguments


def found(place: Path, **settings: str) -> tuple[str | None, str | None, bool]:
    """Return the parsers of tools and reasoning, and whether tools are turned on."""
    vllms = with_parsers(read(place, **settings), StartContext(CPU)).vllm
    return (
        vllms.tool_call_parser or None,
        vllms.reasoning_parser or None,
        vllms.enable_auto_tool_choice,
    )


def test_auto_becomes_the_parsers_of_the_models_family(hybrid: Path) -> None:
    assert found(hybrid, **AUTO) == ("hermes", "qwen3", True)
    assert [*told(read(hybrid, **AUTO).vllm)] == [
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
def test_what_the_operator_chose_counts(
    hybrid: Path, settings: dict[str, str], expected: tuple[str | None, str | None, bool]
) -> None:
    assert found(hybrid, **{**AUTO, **settings}) == expected


def test_a_template_in_a_file_of_its_own_counts(hybrid: Path) -> None:
    (hybrid / "chat_template.jinja").write_text(CODER)
    assert found(hybrid, **AUTO) == ("qwen3_coder", None, True)


def test_what_is_not_set_is_hinted_at(hybrid: Path) -> None:
    assert [line.rpartition("=")[2] for line in told(read(hybrid).vllm)] == ["hermes", "qwen3"]
    (line,) = told(read(hybrid, REASONING_PARSER="deepseek_r1").vllm)
    assert line.endswith("TOOL_CALL_PARSER=hermes")


def test_a_model_of_no_family_starts_without_a_parser(demo_model: Path) -> None:
    plain = "{% for message in messages %}{{ message.content }}{% endfor %}"
    unknown = {**AUTO, "CHAT_TEMPLATE": plain}
    assert found(demo_model, **unknown) == (None, None, False)
    (line,) = told(read(demo_model, **unknown).vllm)
    assert line.startswith("TOOL_CALL_PARSER=none, REASONING_PARSER=none: no family")


def test_the_doctor_says_what_auto_stands_for() -> None:
    (found,) = checks.parsers(candidate(TOOL_CALL_PARSER="auto"))
    # config.json is all that is known, and the model is called org/name.
    assert found.level is Level.WARN
    assert found.text.startswith("TOOL_CALL_PARSER=none: no family")
    named = candidate(TOOL_CALL_PARSER="auto", SERVED_MODEL_NAME="x", MODEL="me/Llama-3.1-mine")
    (found,) = checks.parsers(named)
    assert (found.level, "llama3_json" in found.text) == (Level.OK, True)
    assert [*checks.parsers(candidate())] == []
