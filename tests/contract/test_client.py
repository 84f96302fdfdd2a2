"""Tests of the client against vLLM's classes, the worker's settings and the client's imports."""

import ast
import dataclasses
import inspect
import re
import sys
import tomllib
from collections import defaultdict
from importlib.metadata import packages_distributions
from typing import Any

import pytest
from catalogue import REFERENCE_MACHINE, Catalogue
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from support import ROOT
from support.engine.scripted import settings
from vllm import SamplingParams
from vllm.logprobs import Logprob
from vllm.lora.request import LoRARequest
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.sampling_params import StructuredOutputsParams

from llm_worker_client.deploy.plan import NO_BATCH_KEY
from llm_worker_client.deploy.settings import LISTING
from llm_worker_client.llm import inputs, outputs
from llm_worker_client.mapping.requests import OutputKind, find_rule
from llm_worker_client.mapping.responses import Dialect
from worker.dialects import llm_engine
from worker.dialects.openai import files
from worker.dialects.table import ROUTES
from worker.doctor import missing_key_note
from worker.routes import events
from worker.settings import Settings
from worker.settings.mistakes import SettingsError
from worker.settings.names import OPTION_BY_SETTING

# Compatibility with scripts that were written for vLLM's classes:


def test_the_client_knows_every_sampling_parameter_of_vllm() -> None:
    fields = {name for name in SamplingParams.__struct_fields__ if not name.startswith("_")}
    # Parameters that the raw form of a job does not have.
    missing = {"extra_args", "prompt_logprob_start", "prompt_logprob_token_ids"}
    assert fields - inputs.PARAMETER_NAMES - inputs.INTERNAL_FIELDS == missing


@pytest.mark.parametrize(
    ("fields", "sent"),
    [
        ({}, {}),
        ({"temperature": 0, "max_tokens": 5}, {"temperature": 0, "max_tokens": 5}),
        ({"n": 2, "seed": 3, "logprobs": 1}, {"n": 2, "seed": 3, "logprobs": 1}),
        (
            {"structured_outputs": StructuredOutputsParams(choice=["a"])},
            {"structured_outputs": {"choice": ["a"]}},
        ),
    ],
)
def test_only_set_fields_of_vllms_sampling_params_are_sent(
    fields: dict[str, Any], sent: dict[str, Any]
) -> None:
    found = inputs.to_job_params(SamplingParams(**fields))
    # vLLM sets some switches itself, for greedy sampling and for log probabilities of the prompt.
    found = {name: value for name, value in found.items() if value is not False}
    assert found == {"max_tokens": 16, **sent}


def test_a_lora_request_is_sent_as_the_name_of_the_adapter() -> None:
    (item,) = inputs.create_items([("a", None)], None, LoRARequest("x", 1, "/adapters/x"))
    assert item.adapter == "x"


@pytest.mark.parametrize(
    ("ours", "vllms", "more"),
    [
        (outputs.RequestOutput, RequestOutput, {"num_prompt_tokens"}),
        (outputs.CompletionOutput, CompletionOutput, set()),
        (outputs.Logprob, Logprob, set()),
    ],
)
def test_outputs_have_the_field_names_of_vllms_classes(
    ours: Any, vllms: Any, more: set[str]
) -> None:
    names = {field.name for field in dataclasses.fields(ours)}
    assert names - {*inspect.signature(vllms.__init__).parameters} == more


def test_the_client_and_the_worker_note_a_missing_key_in_the_same_words() -> None:
    note = missing_key_note(settings(FILES_PATH="/any"))
    assert f"settings: {note}={{{{ RUNPOD_SECRET_<its name> }}}}" == NO_BATCH_KEY


# A value that the client refuses must be refused by the worker, too. Tests of the refused values
# themselves are in unit/client/deploy/test_plan.py.

VALUES = (
    *("0", "1", "2", "-1", "-2", "+3", "007", "1_000", "4096", "99999999999", "0.5", "1.0", "7.5"),
    *("1e3", "inf", "nan", "16k", "16K", "1.5m", "2G", "k", "auto", "none", "None", "null", "all"),
    *("true", "Yes", "OFF", "t", "abc", "FLOAT16", "Half", "my.own.Class", "org/name", "./here"),
    *("https://hub/org/name", "org/name@main", "a b", "{}", '{"a": 1}', "[1]", "[", "a=b,c", "1,2"),
)


@pytest.mark.slow
def test_the_client_refuses_no_value_that_vllm_accepts() -> None:
    catalogue = Catalogue(REFERENCE_MACHINE)
    refused = defaultdict[str, dict[str, str]](dict)
    for name, option in (
        {name: name for name in catalogue.options.names} | OPTION_BY_SETTING
    ).items():
        row = catalogue.options[option]
        for value in {*VALUES, *row.choices, row.default, row.example or ""} - {""}:
            if LISTING.value_error(name, value):
                refused[value][name] = option
    surprises = []
    for value, options in refused.items():
        # All in one call, since vLLM's parser is asked about each value separately.
        settings = dict.fromkeys(options.values(), value) | {"MODEL": "org/name"}
        wrong = {
            mistake.name for mistake in catalogue.options.parse_engine_settings(settings).mistakes
        }
        surprises += [
            (name, value)
            for name, option in options.items()
            if option not in wrong and not catalogue.find_mistakes(option, value)
        ]
    # The worker checks the name of a model before vLLM does.
    assert [one for one in surprises if one[0] not in {"MODEL", "MODEL_NAME"}] == []


def test_the_client_refuses_no_value_that_the_worker_accepts() -> None:
    surprises = []
    for name in map(str.upper, Settings.model_fields):
        for value in filter(lambda text: LISTING.value_error(name, text), VALUES):
            try:
                Settings.from_env({"MODEL_NAME": "org/name", name: value})
            except SettingsError:
                continue
            surprises.append((name, value))
    assert surprises == []


# The client's package:


def test_the_client_reads_each_route_in_the_format_of_the_worker() -> None:
    for route in ROUTES:
        rule, _ = find_rule(re.sub(r"{[^}]*}", "a", route.path.removeprefix("/v1")), route.method)
        dialect = (
            Dialect.ANTHROPIC if route.error_format is events.ANTHROPIC_ERRORS else Dialect.OPENAI
        )
        dialect = Dialect.LLM_ENGINE if route in llm_engine.ROUTES else dialect
        assert rule.dialect is dialect, route.path
        assert (rule.kind is OutputKind.CONTENT) == (route.path == files.CONTENT_PATH)
        always = route.generate is not None and route.streams
        assert (rule.kind is OutputKind.EVENTS) == always, route.path


def test_the_package_requires_exactly_its_imports() -> None:
    nodes = [
        node
        for package in ("llm_worker_client", "llm_worker_console")
        for file in (ROOT / "src" / package).rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
    ]
    modules = {one.name for node in nodes if isinstance(node, ast.Import) for one in node.names}
    modules |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    packages = {module.partition(".")[0] for module in modules}
    # httpx is imported for type checkers only; the OpenAI and Anthropic clients bring it.
    own = {"llm_worker_client", "llm_worker_console"}
    third_party = packages - sys.stdlib_module_names - own - {"httpx"}
    providers = packages_distributions()
    found = {canonicalize_name(providers[module][0]) for module in third_party}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    def names(requirements: list[str]) -> set[str]:
        return {canonicalize_name(Requirement(one).name) for one in requirements}

    extras = {name for extra in project["optional-dependencies"].values() for name in names(extra)}
    required = names(project["dependencies"])
    assert required <= found <= required | extras
