"""vLLM's parsers of the well-known families of models."""

from support.releases import since

from worker.engine.locations import find
from worker.engine.options.families import FAMILIES

# An older release may lack the newest ones, which are then neither chosen nor hinted at.
pytestmark = since("0.32", "the families are those of vLLM 0.32")


def test_every_parser_of_the_families_is_one_of_vllms_and_can_be_imported() -> None:
    for name in {family.tools for family in FAMILIES} - {None}:
        find("ToolParserManager").get_tool_parser(name)
    for name in {family.reasoning for family in FAMILIES} - {None}:
        find("ReasoningParserManager").get_reasoning_parser(name)


def test_every_architecture_of_the_families_is_one_of_vllms() -> None:
    named = {name for family in FAMILIES for name in family.architectures}
    assert named <= {*find("ModelRegistry").get_supported_archs()}
