"""Findings of the doctor about a model, except for its size, and rehearsals of startup."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.doctor import (
    CPU,
    LLAMA,
    RTX_4090,
    arguments,
    candidate,
    only_finding,
    rehearse,
    write_config,
)
from support.models import configs as models
from support.tables.models import RECORDED_MODELS

from worker.doctor import engines
from worker.doctor.candidate import Candidate
from worker.doctor.findings import Finding, Level, has_failure, summary
from worker.store import File, Origin, Snapshot

OK, WARN, FAIL, UNKNOWN = Level.OK, Level.WARN, Level.FAIL, Level.UNKNOWN
OWN_CODE = {"auto_map": {"AutoModelForCausalLM": "own.Own"}}
OWN_TYPE = {"auto_map": {"AutoConfig": "own.Own"}, "model_type": "own"}


def llama(**changed: Any) -> dict[str, Any]:
    return {**models.LLAMA_3_1_8B, **changed}


def architecture_finding(architecture: str, **changed: Any) -> Finding:
    settings = changed.pop("settings", {})
    model, findings = rehearse(llama(architectures=[architecture], **changed), **settings)
    return only_finding(findings or engines.report_architecture(model) if model else findings)


@pytest.mark.parametrize(
    ("architecture", "changed", "level", "change"),
    [
        ("LlamaForCausalLM", {}, OK, ""),
        # vLLM derives a model for embedding or ranking from the one that it has.
        ("LlamaForSequenceClassification", {}, OK, ""),
        ("XverseForCausalLM", {}, FAIL, "vLLM 0.23.0, the last with it, is too old"),
        ("NobodysForCausalLM", {}, FAIL, "set another model"),
        # transformers has it, but vLLM can't run its code.
        ("BigBirdForCausalLM", {}, FAIL, "set another model"),
        ("OwnForCausalLM", OWN_CODE, FAIL, "set TRUST_REMOTE_CODE=1 if you trust the repository"),
        # The code of a family that has left vLLM does not help.
        ("XverseForCausalLM", OWN_CODE, FAIL, "vLLM 0.23.0, the last with it, is too old"),
    ],
    ids=str,
)
def test_vllm_decides_about_the_architecture(
    architecture: str, changed: dict[str, Any], level: Level, change: str
) -> None:
    found = architecture_finding(architecture, **changed)
    assert found.level is level
    assert change in found.change


def test_a_refusal_names_the_model_and_not_the_directory_of_its_files() -> None:
    _, (found,) = rehearse(llama(**OWN_TYPE))
    assert found.change == "set TRUST_REMOTE_CODE=1 if you trust the repository"
    assert LLAMA.model in found.text
    assert str(write_config(llama(**OWN_TYPE))) not in found.text


@pytest.mark.parametrize(
    ("method", "change"),
    [
        ("fp8", None),
        ("compressed_tensors", None),
        # vLLM has this method under another name.
        ("auto-round", None),
        ("aqlm", "supported it; use a checkpoint with another quantization"),
        ("x", "use a checkpoint with another quantization"),
    ],
)
def test_vllm_decides_about_the_quantisation(method: str, change: str | None) -> None:
    _, findings = rehearse(llama(quantization_config={"quant_method": method}))
    assert [one.change for one in findings if change and change in one.change] or not change


def test_the_quantisation_of_a_checkpoint_is_reported() -> None:
    model = candidate(config=llama(quantization_config={"quant_method": "fp8"}))
    assert only_finding(engines.report_quantization(model)).text == "fp8"
    assert [*engines.report_quantization(candidate())] == []
    # vLLM reads another configuration than the model's own.
    other = str(write_config(llama(quantization_config={"quant_method": "awq"})))
    model = candidate(HF_CONFIG_PATH=other)
    assert only_finding(engines.report_quantization(model)).text == "awq"


def snapshot_to_download(size: int, place: Path) -> Snapshot:
    files = (File("model.safetensors", size),)
    changed = {
        "origin": Origin.DOWNLOAD,
        "weights": files,
        "not_downloaded": files,
        "directory": place,
    }
    return Snapshot(**{**vars(LLAMA), **changed})


def test_a_disk_that_is_too_small_fails(tmp_path: Path) -> None:
    place = tmp_path / "models--a--b"
    assert only_finding(engines.check_disk_space(snapshot_to_download(10**18, place))).level is FAIL
    assert only_finding(engines.check_disk_space(snapshot_to_download(1, place))).level is OK
    assert list(engines.check_disk_space(LLAMA)) == []


def check_start_time(found: Candidate, **environ: str) -> Finding:
    return only_finding(engines.check_startup_timeout([found], environ))


def test_a_startup_longer_than_the_platforms_timeout_is_a_warning(tmp_path: Path) -> None:
    large = Candidate(arguments(RTX_4090), snapshot_to_download(140 * 10**9, tmp_path))
    found = check_start_time(large)
    assert found.level is WARN
    assert "700 s to download at 200 MB/s" in found.text
    assert found.change == "set RUNPOD_INIT_TIMEOUT=1620, or put the model on a network volume"
    assert check_start_time(large, RUNPOD_INIT_TIMEOUT="1620").level is OK
    # If nothing is downloaded, a network volume doesn't help.
    assert (
        check_start_time(candidate(), RUNPOD_INIT_TIMEOUT="5").change
        == "set RUNPOD_INIT_TIMEOUT=180"
    )
    assert check_start_time(candidate(), RUNPOD_INIT_TIMEOUT="10m").level is WARN


def test_startup_without_compiling_is_shorter() -> None:
    assert "60 s to compile" in check_start_time(candidate()).text
    assert "to compile" not in check_start_time(candidate(ENFORCE_EAGER="1")).text
    # The worker doesn't compile without a GPU.
    assert "to compile" not in check_start_time(candidate(CPU)).text


def test_the_report_names_the_place_of_a_model_and_the_skipped_places() -> None:
    skipped = ("image: it holds org/other@main", "platform's cache: it does not have it")
    found = only_finding(engines.report_origin(Snapshot(**{**vars(LLAMA), "skipped": skipped})))
    assert found.level is OK
    assert "was found in the volume" in found.text
    assert found.text.endswith(f"; skipped: {skipped[0]}; {skipped[1]}")


UNSET = "set MAX_MODEL_LEN=131072, or leave it unset"
LONGER = {"HF_OVERRIDES": '{"max_position_embeddings": 262144}'}


@pytest.mark.parametrize(
    ("settings", "level", "change"),
    [({}, WARN, UNSET), (LONGER, OK, "")],
    ids=["vLLM is set to allow it", "overrides of the configuration"],
)
def test_a_length_beyond_the_models_maximum_is_a_warning_unless_overridden(
    settings: dict[str, Any], level: Level, change: str
) -> None:
    found = only_finding(
        engines.report_context_length(candidate(MAX_MODEL_LEN="200000", **settings))
    )
    assert (found.level, found.change) == (level, change)


QWEN_3 = {
    **models.QWEN_2_5_7B,
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "max_position_embeddings": 40960,
    "rope_theta": 1000000,
}
YARN = (
    'HF_OVERRIDES={"rope_parameters":{"rope_theta":1000000,"rope_type":"yarn","factor":1.6,'
    '"original_max_position_embeddings":40960},"max_position_embeddings":65536}'
)


def refused_context(config: dict[str, Any], length: int, **settings: str) -> Finding:
    _, (refused,) = rehearse(config, MAX_MODEL_LEN=str(length), **settings)
    return refused


def test_a_context_beyond_the_models_can_be_reached_with_yarn() -> None:
    refused = refused_context(QWEN_3, 65536)
    shorter, yarn = refused.change.splitlines()
    assert (refused.level, refused.topic) == (FAIL, "context")
    assert shorter == "set MAX_MODEL_LEN=40960, or leave it unset"
    assert yarn == f"or set {YARN} for YaRN, which may make answers to short texts worse"
    # The proposal is accepted by the same rehearsal.
    name, value = YARN.split("=")
    accepted, findings = rehearse(QWEN_3, MAX_MODEL_LEN="65536", **{name: value})
    assert accepted
    assert findings == []
    assert only_finding(engines.report_context_length(accepted)).level is OK
    assert accepted.cache_plan().rope_factors == {1.6}


SCALED = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
# A scaled model lacks only the length.
LENGTH = '"max_position_embeddings":131072} for YaRN'


@pytest.mark.parametrize(
    ("config", "length", "overrides", "proposal"),
    [
        # The language model in a multimodal one is scaled.
        (
            *(RECORDED_MODELS["vision"].config, 262_144, {}),
            'HF_OVERRIDES={"text_config":{"rope_parameters":{"rope_theta":500000.0,"rope_type"',
        ),
        # The overrides of the operator remain.
        (QWEN_3, 65536, {"head_dim": 64}, 'HF_OVERRIDES={"head_dim":64,"rope_parameters":{'),
        ({**QWEN_3, "rope_scaling": SCALED}, 131_072, {}, LENGTH),
        (QWEN_3, 131_072, {"rope_scaling": SCALED}, LENGTH),
        (QWEN_3, 131_073, {"rope_scaling": SCALED}, None),
        (QWEN_3, 131_072, {"rope_scaling": {**SCALED, "factor": "4"}}, None),
        # Positions that are already scaled, that differ between layers, and that are not rotary.
        (models.LLAMA_3_1_8B, 200_000, {}, None),
        (models.GPT_OSS_20B, 200_000, {}, None),
        (models.PHI_3_MINI_128K, 200_000, {}, None),
        (RECORDED_MODELS["sliding window"].config, 65_536, {}, None),
        # vLLM's code for this model ignores the scaling.
        (RECORDED_MODELS["hybrid"].config, 262_144, {}, None),
        (QWEN_3, 4 * 40960 + 1, {}, None),
    ],
    ids="multimodal overridden scaled scales beyond odd llama3 yarn longrope layers ignored "
    "long".split(),
)
def test_yarn_is_proposed_where_it_has_an_effect(
    config: dict[str, Any], length: int, overrides: dict[str, Any], proposal: str | None
) -> None:
    settings = {"HF_OVERRIDES": json.dumps(overrides)} if overrides else {}
    change = refused_context(config, length, **settings).change
    assert proposal in change if proposal else "for YaRN" not in change


def test_a_refused_option_is_ignored_by_the_other_checks() -> None:
    accepted, (refused,) = rehearse(MAX_MODEL_LEN="200000")
    assert (refused.level, refused.topic) == (FAIL, "context")
    assert refused.text.endswith("the checks below ignore MAX_MODEL_LEN")
    assert accepted
    assert "MAX_MODEL_LEN" not in accepted.engine.operator_options


@pytest.mark.parametrize(
    ("levels", "suffix", "fails", "expected"),
    [
        ([OK, WARN], "", False, "The worker would start: 1 warning."),
        ([WARN], " on A40", False, "The worker would start on A40: 1 warning."),
        ([OK, WARN, FAIL], "", True, "The worker would not start: 1 failure, 1 warning."),
        (
            *([WARN, UNKNOWN, UNKNOWN], "", False),
            "The worker would start, as far as is known: 1 warning, 2 unknown.",
        ),
    ],
)
def test_only_failures_prevent_startup(
    levels: list[Level], suffix: str, fails: bool, expected: str
) -> None:
    findings = [Finding(level, "a", "b") for level in levels]
    assert (has_failure(findings), summary(findings, suffix)) == (fails, expected)


JUNK = [None, "x", [1], {"x": 1}, -1, 0, 3.5]
ODD = (models.DEEPSEEK_V3, models.GPT_OSS_20B, models.PHI_3_MINI_128K)


@pytest.mark.parametrize("key", sorted({"text_config", "auto_map"}.union(*ODD)))
def test_malformed_configurations_raise_no_errors(key: str) -> None:
    config = next((config for config in ODD if key in config), models.LLAMA_3_1_8B)
    # Without architectures vLLM searches for those of the model's type, which takes seconds.
    rest = {} if key == "architectures" else config
    for junk in JUNK:
        model, findings = rehearse({**rest, key: junk})
        reports = (
            [report for one in engines.MODEL_REPORTS for report in one(model)] if model else []
        )
        assert model or findings
        assert all(finding.text for finding in [*findings, *reports])
