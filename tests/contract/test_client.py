"""The client against what it stands for: vLLM's classes, the worker's settings, its own imports."""

import ast
import dataclasses
import inspect
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from typing import Any

import pytest
from listed import WORKERS, Catalogue
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from support import ROOT
from vllm import SamplingParams
from vllm.logprobs import Logprob
from vllm.lora.request import LoRARequest
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.sampling_params import StructuredOutputsParams

from llm_worker_client.deploy.settings import LISTING
from llm_worker_client.llm import outputs, sampling
from llm_worker_client.llm.prompts import items_of
from llm_worker_client.mapping.errors import Dialect
from llm_worker_client.mapping.requests import Kind, _special
from worker.dialects import llm_engine
from worker.dialects.openai import files
from worker.dialects.table import ROUTES
from worker.routes import events
from worker.settings import Settings
from worker.settings.mistakes import SettingsError
from worker.settings.names import ALIASES

# vLLM's classes, which scripts were written for:


def test_every_parameter_is_sent_left_out_or_refused_by_name() -> None:
    fields = {name for name in SamplingParams.__struct_fields__ if not name.startswith("_")}
    # What the raw form has not.
    missing = {"extra_args", "prompt_logprob_start", "prompt_logprob_token_ids"}
    assert fields - sampling.NAMES - sampling.INSIDE == missing


@pytest.mark.parametrize(
    ("given", "sent"),
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
def test_vllms_parameters_are_sent_as_far_as_they_are_set(
    given: dict[str, Any], sent: dict[str, Any]
) -> None:
    found = sampling.plain(SamplingParams(**given))
    # vLLM sets them itself where it is greedy, and where log probabilities of a prompt are asked.
    found = {name: value for name, value in found.items() if value is not False}
    assert found == {"max_tokens": 16, **sent}


def test_of_vllms_adapter_the_name_is_sent() -> None:
    (item,) = items_of([("a", None)], None, LoRARequest("x", 1, "/adapters/x"))
    assert item.adapter == "x"


@pytest.mark.parametrize(
    ("ours", "vllms", "more"),
    [
        (outputs.RequestOutput, RequestOutput, {"num_prompt_tokens"}),
        (outputs.CompletionOutput, CompletionOutput, set()),
        (outputs.Logprob, Logprob, set()),
    ],
)
def test_results_have_vllms_names(ours: Any, vllms: Any, more: set[str]) -> None:
    names = {field.name for field in dataclasses.fields(ours)}
    assert names - {*inspect.signature(vllms.__init__).parameters} == more


# The worker's settings: what the client takes for a wrong value, the worker refuses, too. What it
# takes for one: unit/client/deploy/test_plan.py.

TEXTS = (
    *("0", "1", "2", "-1", "-2", "+3", "007", "1_000", "4096", "99999999999", "0.5", "1.0", "7.5"),
    *("1e3", "inf", "nan", "16k", "16K", "1.5m", "2G", "k", "auto", "none", "None", "null", "all"),
    *("true", "Yes", "OFF", "t", "abc", "FLOAT16", "Half", "my.own.Class", "org/name", "./here"),
    *("https://hub/org/name", "org/name@main", "a b", "{}", '{"a": 1}', "[1]", "[", "a=b,c", "1,2"),
)


@pytest.mark.slow
def test_no_value_is_refused_that_vllm_takes() -> None:
    catalogue = Catalogue(WORKERS)
    surprises = []
    for name, option in ({name: name for name in catalogue.options.names} | ALIASES).items():
        row = catalogue.options[option]
        texts = {*TEXTS, *row.choices, row.default, row.example or ""} - {""}
        surprises += [
            (name, value)
            for value in texts
            if LISTING.wrong(name, value) and not catalogue.mistakes(option, value)
        ]
    # The worker checks a model's name before vLLM sees it.
    assert [one for one in surprises if one[0] not in {"MODEL", "MODEL_NAME"}] == []


def test_no_value_is_refused_that_the_worker_takes() -> None:
    surprises = []
    for name in map(str.upper, Settings.model_fields):
        for value in filter(lambda text: LISTING.wrong(name, text), TEXTS):
            try:
                Settings.from_env({"MODEL_NAME": "org/name", name: value})
            except SettingsError:
                continue
            surprises.append((name, value))
    assert surprises == []


# Its package:


def test_the_client_reads_every_route_as_the_worker_answers_it() -> None:
    for route in ROUTES:
        special, _ = _special(re.sub(r"{[^}]*}", "a", route.path), route.method)
        dialect = Dialect.ANTHROPIC if route.errors is events.ANTHROPIC else Dialect.OPENAI
        dialect = Dialect.LLM_ENGINE if route in llm_engine.ROUTES else dialect
        assert special.dialect is dialect, route.path
        assert (special.kind is Kind.CONTENT) == (route.path == files.CONTENT)
        always = route.generate is not None and route.streams
        assert (special.kind is Kind.EVENTS) == always, route.path


def test_the_package_requires_what_it_imports_and_nothing_else() -> None:
    nodes = [
        node
        for file in (ROOT / "src" / "llm_worker_client").rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
    ]
    modules = {one.name for node in nodes if isinstance(node, ast.Import) for one in node.names}
    modules |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    tops = {module.partition(".")[0] for module in modules}
    # The last is for type checkers alone: it is brought by clients that need it.
    foreign = tops - sys.stdlib_module_names - {"llm_worker_client", "httpx"}
    providers = packages_distributions()
    found = {canonicalize_name(providers[module][0]) for module in foreign}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    def names(requirements: list[str]) -> set[str]:
        return {canonicalize_name(Requirement(one).name) for one in requirements}

    extras = {name for extra in project["optional-dependencies"].values() for name in names(extra)}
    required = names(project["dependencies"])
    assert required <= found <= required | extras
