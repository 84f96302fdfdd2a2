"""What the doctor says of a model besides its size."""

import json
from pathlib import Path

import pytest
from support.doctor import CPU, LLAMA, RTX_4090, arguments, candidate, only
from support.models import configs as models

from worker.doctor import checks, fit
from worker.doctor.candidate import Candidate
from worker.doctor.findings import Finding, Level, failed, render, summary
from worker.doctor.memory import GIB
from worker.store import File, Origin, Snapshot


@pytest.mark.parametrize(
    ("architecture", "level", "change"),
    [
        ("LlamaForCausalLM", Level.OK, ""),
        # As an embedder or a ranker it is made from the model that vLLM has.
        ("LlamaForSequenceClassification", Level.OK, ""),
        ("XverseForCausalLM", Level.FAIL, "0.23.0"),
        ("NobodysForCausalLM", Level.FAIL, "a vLLM that knows it"),
        ("BigBirdForCausalLM", Level.WARN, ""),
    ],
)
def test_the_architecture_is_looked_up_as_vllm_does(
    architecture: str, level: Level, change: str
) -> None:
    config = {**models.LLAMA_3_1_8B, "architectures": [architecture]}
    found = only(checks.architecture(candidate(config=config)))
    assert found.level is level
    assert change in found.change


def test_code_of_the_repository_must_be_trusted() -> None:
    own = {"architectures": ["OwnForCausalLM"], "auto_map": {"AutoModelForCausalLM": "own.Own"}}
    config = {**models.LLAMA_3_1_8B, **own}
    found = only(checks.architecture(candidate(config=config)))
    assert (found.level, found.change) == (
        Level.FAIL,
        "set TRUST_REMOTE_CODE=1 if you trust it",
    )
    trusted = candidate(config=config, TRUST_REMOTE_CODE="1")
    assert only(checks.architecture(trusted)).level is Level.WARN


UNTRUSTED = {"auto_map": {"AutoConfig": "own.Own"}, "model_type": "own"}


def test_what_vllm_refuses_of_a_whole_model_fails(tmp_path: Path) -> None:
    config = {**models.QWEN_2_5_7B, "rope_scaling": {"type": "linear"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    snapshot = Snapshot(**{**vars(LLAMA), "config": config, "place": tmp_path})
    found = only(checks.configuration(Candidate.of(arguments(), snapshot)))
    assert (found.level, found.change) == (Level.FAIL, "")
    assert found.text.startswith("vLLM refuses the model: ")
    assert "factor" in found.text


def test_what_vllm_refuses_of_a_config_json_alone_is_not_known() -> None:
    refused = candidate(config={**models.LLAMA_3_1_8B, **UNTRUSTED})
    found = only(checks.configuration(refused))
    assert found.level is Level.UNKNOWN
    assert "by its config.json alone: " in found.text
    assert LLAMA.model in found.text
    assert found.change == "set TRUST_REMOTE_CODE=1 if you trust the repository"
    trusted = candidate(config={**models.LLAMA_3_1_8B, **UNTRUSTED}, TRUST_REMOTE_CODE="1")
    assert only(checks.configuration(trusted)).change == ""


def test_code_that_is_not_downloaded_yet_is_not_looked_for() -> None:
    config = {**models.LLAMA_3_1_8B, "auto_map": {"AutoConfig": "own.Config"}}
    assert list(checks.configuration(candidate(config=config, TRUST_REMOTE_CODE="1"))) == []


def test_of_an_accepted_configuration_nothing_is_said() -> None:
    assert list(checks.configuration(candidate())) == []


@pytest.mark.parametrize(
    ("method", "level"),
    [
        ("fp8", Level.OK),
        ("compressed_tensors", Level.OK),
        # vLLM has it under another name.
        ("auto-round", Level.OK),
        ("aqlm", Level.FAIL),
        ("x", Level.WARN),
    ],
)
def test_the_quantisation_of_a_checkpoint_is_looked_up(method: str, level: Level) -> None:
    config = {**models.LLAMA_3_1_8B, "quantization_config": {"quant_method": method}}
    assert only(checks.quantization(candidate(config=config))).level is level


def test_a_checkpoint_that_is_not_quantised_needs_no_method() -> None:
    assert list(checks.quantization(candidate())) == []


def downloaded(size: int, place: Path) -> Snapshot:
    files = (File("model.safetensors", size),)
    changed = {"origin": Origin.DOWNLOAD, "weights": files, "missing": files, "place": place}
    return Snapshot(**{**vars(LLAMA), **changed})


def test_a_disk_that_is_too_small_fails(tmp_path: Path) -> None:
    found = only(checks.disk(downloaded(10**18, tmp_path / "models--a--b")))
    assert found.level is Level.FAIL
    assert only(checks.disk(downloaded(1, tmp_path / "models--a--b"))).level is Level.OK
    assert list(checks.disk(LLAMA)) == []


def started(found: Candidate, **environ: str) -> Finding:
    return only(checks.start_time([found], environ))


def test_a_start_longer_than_the_platform_waits_is_a_warning(tmp_path: Path) -> None:
    large = Candidate.of(arguments(RTX_4090), downloaded(140 * 10**9, tmp_path))
    found = started(large)
    assert found.level is Level.WARN
    assert "700 s to download at 200 MB/s" in found.text
    assert found.change == "set RUNPOD_INIT_TIMEOUT=1620, or put the model on a network volume"
    assert started(large, RUNPOD_INIT_TIMEOUT="1620").level is Level.OK


def test_a_start_without_compiling_is_shorter() -> None:
    assert "60 s to compile" in started(candidate()).text
    assert "to compile" not in started(candidate(ENFORCE_EAGER="1")).text
    # Which is what the worker chooses without a GPU.
    assert "to compile" not in started(candidate(CPU)).text


def test_a_network_volume_is_proposed_only_where_something_is_downloaded() -> None:
    assert started(candidate(), RUNPOD_INIT_TIMEOUT="5").change == "set RUNPOD_INIT_TIMEOUT=180"


def test_a_timeout_that_is_no_number_is_a_warning() -> None:
    assert started(candidate(), RUNPOD_INIT_TIMEOUT="10m").level is Level.WARN


def test_a_model_that_lies_there_broken_fails() -> None:
    broken = Snapshot(**{**vars(LLAMA), "damaged": "a.safetensors is cut off", "lacking": ("b",)})
    findings = [(found.level, found.text.split()[0]) for found in checks.weights(broken, "auto")]
    assert findings == [(Level.FAIL, "a.safetensors"), (Level.FAIL, "b")]


def test_a_directory_without_weights_fails() -> None:
    empty = Snapshot(model="m", origin=Origin.DIRECTORY, place=Path())
    levels = [found.level for found in checks.weights(empty, "auto")]
    assert levels == [Level.FAIL, Level.UNKNOWN]


def test_the_report_shows_where_a_model_is_found_and_where_it_is_not() -> None:
    passed = ("image: it holds org/other@main", "platform's cache: it does not have it")
    found = only(checks.origin(Snapshot(**{**vars(LLAMA), "passed": passed})))
    assert found.level is Level.OK
    assert "is there, from the volume" in found.text
    assert found.text.endswith(f"; passed over: {passed[0]}; {passed[1]}")


def test_only_a_failure_keeps_a_worker_from_starting() -> None:
    doubts = [Finding(Level.OK, "a", "b"), Finding(Level.WARN, "c", "d", "e")]
    assert not failed(doubts)
    assert render(doubts).endswith("\nThe worker would start: 1 warning.\n")
    both = [*doubts, Finding(Level.FAIL, "f", "g", "h")]
    assert failed(both)
    assert render(both).endswith("\nThe worker would not start: 1 failure, 1 warning.\n")


def test_what_is_not_known_is_neither_a_warning_nor_nothing() -> None:
    unknown = [Finding(Level.WARN, "a", "b"), *[Finding(Level.UNKNOWN, "c", "d")] * 2]
    assert not failed(unknown)
    assert summary(unknown) == "The worker would start, as far as is known: 1 warning, 2 unknown."
    assert summary(unknown[:1], " on A40") == "The worker would start on A40: 1 warning."


def test_a_finding_is_a_line_and_its_change_another() -> None:
    output = render([Finding(Level.FAIL, "context", "too long", "set MAX_MODEL_LEN=1")])
    first, second = output.splitlines()[:2]
    assert first.split() == ["FAIL", "context", "too", "long"]
    assert second.strip() == "-> set MAX_MODEL_LEN=1"
    assert second.index("->") == first.index("too")


JUNK = [None, "x", "", [], [1], {}, {"x": 1}, -1, 0, 3.5, True]
KEYS = {
    *models.PHI_3_MINI_128K,
    *models.DEEPSEEK_V3,
    *models.GPT_OSS_20B,
    "text_config",
    "auto_map",
}


@pytest.mark.parametrize("key", sorted(KEYS))
def test_no_configuration_is_too_odd_to_be_looked_at(key: str) -> None:
    for config in (models.PHI_3_MINI_128K, models.DEEPSEEK_V3, models.GPT_OSS_20B):
        for junk in JUNK:
            # Without architectures vLLM looks for those of the type, which takes it seconds.
            rest = {} if key == "architectures" else config
            odd = candidate(config={**rest, key: junk})
            findings = [
                *checks.architecture(odd),
                *checks.configuration(odd),
                *checks.quantization(odd),
                *fit.parallel(odd, RTX_4090),
                *fit.context(odd, {}),
                *fit.fits(odd, RTX_4090, {}, 64 * GIB),
            ]
            assert all(finding.text for finding in findings)
