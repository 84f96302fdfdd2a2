"""What the doctor says of a model besides its size, and what a start would refuse of it."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.doctor import CPU, LLAMA, RTX_4090, arguments, candidate, only
from support.models import configs as models
from support.tables.models import RECORDED

from worker.doctor import checks
from worker.doctor.candidate import Candidate
from worker.doctor.findings import Finding, Level, failed, summary
from worker.doctor.rehearsal import rehearse
from worker.engine.arguments import StartContext
from worker.store import File, Origin, Snapshot

OK, WARN, FAIL, UNKNOWN = Level.OK, Level.WARN, Level.FAIL, Level.UNKNOWN
TRUSTED: dict[str, Any] = {"TRUST_REMOTE_CODE": "1"}
OWN_CODE = {"auto_map": {"AutoModelForCausalLM": "own.Own"}}
OWN_TYPE = {"auto_map": {"AutoConfig": "own.Own"}, "model_type": "own"}
LATER = ", the last release known to have it"


def llama(**changed: Any) -> dict[str, Any]:
    return {**models.LLAMA_3_1_8B, **changed}


@pytest.mark.parametrize(
    ("architecture", "changed", "settings", "level", "change"),
    [
        ("LlamaForCausalLM", {}, {}, OK, ""),
        # As an embedder or a ranker it is made from the model that vLLM has.
        ("LlamaForSequenceClassification", {}, {}, OK, ""),
        ("XverseForCausalLM", {}, {}, FAIL, f"take an image with vLLM 0.23.0{LATER}"),
        (
            *("NobodysForCausalLM", {}, {}, FAIL),
            "take another model, or an image with a vLLM that knows it",
        ),
        ("BigBirdForCausalLM", {}, {}, WARN, ""),
        ("OwnForCausalLM", OWN_CODE, {}, FAIL, "set TRUST_REMOTE_CODE=1 if you trust it"),
        ("OwnForCausalLM", OWN_CODE, TRUSTED, WARN, ""),
    ],
    ids=str,
)
def test_the_architecture_is_looked_up_as_vllm_does(
    architecture: str, changed: dict[str, Any], settings: dict[str, Any], level: Level, change: str
) -> None:
    config = llama(architectures=[architecture], **changed)
    found = only(checks.architecture(candidate(config=config, **settings)))
    assert (found.level, found.change) == (level, change)


def test_what_vllm_refuses_of_a_whole_model_fails(tmp_path: Path) -> None:
    config = {**models.QWEN_2_5_7B, "rope_scaling": {"type": "linear"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    snapshot = Snapshot(**{**vars(LLAMA), "config": config, "place": tmp_path})
    _, (found,) = rehearse(Candidate.of(arguments(), snapshot), StartContext(CPU))
    assert (found.level, found.topic, found.change) == (FAIL, "configuration", "")
    assert found.text.startswith("vLLM refuses the model: ")
    assert "factor" in found.text


def test_what_vllm_refuses_of_a_config_json_alone_is_not_known() -> None:
    _, (found,) = rehearse(candidate(CPU, llama(**OWN_TYPE)), StartContext(CPU))
    assert (found.level, found.topic) == (UNKNOWN, "configuration")
    assert "by its config.json alone: " in found.text
    assert LLAMA.model in found.text
    assert found.change == "set TRUST_REMOTE_CODE=1 if you trust the repository"
    trusted = candidate(CPU, llama(**OWN_TYPE), **TRUSTED)
    _, (found,) = rehearse(trusted, StartContext(CPU))
    assert found.change == ""


def test_of_code_that_is_not_downloaded_nothing_is_said() -> None:
    config = llama(auto_map={"AutoConfig": "own.Config"})
    _, findings = rehearse(candidate(CPU, config, **TRUSTED), StartContext(CPU))
    assert findings == []


@pytest.mark.parametrize(
    ("method", "level"),
    [
        ("fp8", OK),
        ("compressed_tensors", OK),
        # vLLM has it under another name.
        ("auto-round", OK),
        ("aqlm", FAIL),
        ("x", WARN),
    ],
)
def test_the_quantisation_of_a_checkpoint_is_looked_up(method: str, level: Level) -> None:
    config = llama(quantization_config={"quant_method": method})
    assert only(checks.quantization(candidate(config=config))).level is level
    assert [*checks.quantization(candidate())] == []


def downloaded(size: int, place: Path) -> Snapshot:
    files = (File("model.safetensors", size),)
    changed = {"origin": Origin.DOWNLOAD, "weights": files, "missing": files, "place": place}
    return Snapshot(**{**vars(LLAMA), **changed})


def test_a_disk_that_is_too_small_fails(tmp_path: Path) -> None:
    place = tmp_path / "models--a--b"
    assert only(checks.disk(downloaded(10**18, place))).level is FAIL
    assert only(checks.disk(downloaded(1, place))).level is OK
    assert list(checks.disk(LLAMA)) == []


def started(found: Candidate, **environ: str) -> Finding:
    return only(checks.start_time([found], environ))


def test_a_start_longer_than_the_platform_waits_is_a_warning(tmp_path: Path) -> None:
    large = Candidate.of(arguments(RTX_4090), downloaded(140 * 10**9, tmp_path))
    found = started(large)
    assert found.level is WARN
    assert "700 s to download at 200 MB/s" in found.text
    assert found.change == "set RUNPOD_INIT_TIMEOUT=1620, or put the model on a network volume"
    assert started(large, RUNPOD_INIT_TIMEOUT="1620").level is OK
    # Without a download there is nothing to put there.
    assert started(candidate(), RUNPOD_INIT_TIMEOUT="5").change == "set RUNPOD_INIT_TIMEOUT=180"
    assert started(candidate(), RUNPOD_INIT_TIMEOUT="10m").level is WARN


def test_a_start_without_compiling_is_shorter() -> None:
    assert "60 s to compile" in started(candidate()).text
    assert "to compile" not in started(candidate(ENFORCE_EAGER="1")).text
    # Which is what the worker chooses without a GPU.
    assert "to compile" not in started(candidate(CPU)).text


def test_a_model_that_lies_there_broken_or_without_weights_fails() -> None:
    broken = Snapshot(**{**vars(LLAMA), "damaged": "a.safetensors is cut off", "lacking": ("b",)})
    findings = [(found.level, found.text.split()[0]) for found in checks.weights(broken, "auto")]
    assert findings == [(FAIL, "a.safetensors"), (FAIL, "b")]
    empty = Snapshot(model="m", origin=Origin.DIRECTORY, place=Path())
    assert [found.level for found in checks.weights(empty, "auto")] == [FAIL, UNKNOWN]


def test_the_report_shows_where_a_model_is_found_and_where_it_is_not() -> None:
    passed = ("image: it holds org/other@main", "platform's cache: it does not have it")
    found = only(checks.origin(Snapshot(**{**vars(LLAMA), "passed": passed})))
    assert found.level is OK
    assert "is there, from the volume" in found.text
    assert found.text.endswith(f"; passed over: {passed[0]}; {passed[1]}")


UNSET = "set MAX_MODEL_LEN=131072, or leave it unset"
LONGER = {"HF_OVERRIDES": '{"max_position_embeddings": 262144}'}


@pytest.mark.parametrize(
    ("settings", "level", "change"),
    [({}, WARN, UNSET), (LONGER, OK, "")],
    ids=["vLLM is set to allow it", "overrides of the configuration"],
)
def test_a_length_beyond_the_models_own(
    settings: dict[str, Any], level: Level, change: str
) -> None:
    found = only(checks.context(candidate(MAX_MODEL_LEN="200000", **settings)))
    assert (found.level, found.change) == (level, change)


# Rehearsals: of the models only config.json is here


def test_a_parser_of_reasoning_does_not_need_the_tokenizer_of_a_model_that_is_not_here() -> None:
    model = candidate(CPU, REASONING_PARSER="qwen3", DTYPE="bfloat16")
    assert rehearse(model, StartContext(CPU)) == (model, [])


def test_the_context_of_an_embedder_that_is_not_here_is_in_doubt() -> None:
    settings = {"RUNNER": "pooling", "MAX_MODEL_LEN": "1024"}
    model = candidate(CPU, RECORDED["embedder"].config, **settings)
    accepted, findings = rehearse(model, StartContext(CPU))
    assert findings == []
    assert only(checks.context(model)).level is WARN
    assert "MAX_MODEL_LEN" in accepted.engine.given


def test_a_context_that_the_configuration_alone_forbids_is_refused() -> None:
    accepted, (refused,) = rehearse(candidate(CPU, MAX_MODEL_LEN="200000"), StartContext(CPU))
    assert (refused.level, refused.topic) == (FAIL, "context")
    assert "MAX_MODEL_LEN" not in accepted.engine.given


def test_a_format_whose_files_are_not_here_is_unknown() -> None:
    _, (refused,) = rehearse(candidate(CPU, CONFIG_FORMAT="mistral"), StartContext(CPU))
    assert refused.level is UNKNOWN


@pytest.mark.parametrize(
    ("levels", "on", "fails", "said"),
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
def test_only_failures_end_a_start(levels: list[Level], on: str, fails: bool, said: str) -> None:
    findings = [Finding(level, "a", "b") for level in levels]
    assert (failed(findings), summary(findings, on)) == (fails, said)


JUNK = [None, "x", "", [], [1], {}, {"x": 1}, -1, 0, 3.5, True]
ODD = (models.DEEPSEEK_V3, models.GPT_OSS_20B, models.PHI_3_MINI_128K)


@pytest.mark.parametrize("key", sorted({"text_config", "auto_map"}.union(*ODD)))
def test_no_configuration_is_too_odd_to_be_looked_at(key: str) -> None:
    config = next((config for config in ODD if key in config), models.LLAMA_3_1_8B)
    # Without architectures vLLM looks for those of the type, which takes it seconds.
    rest = {} if key == "architectures" else config
    for junk in JUNK:
        odd = candidate(config={**rest, key: junk})
        findings = [
            *checks.architecture(odd),
            *checks.quantization(odd),
            *checks.context(odd),
        ]
        assert all(finding.text for finding in findings)
