"""`deploy plan`: its output and refusals, and that it changes nothing."""

import json
from pathlib import Path

import pytest
from support.runpod_api import document
from support.runpod_api.server import Runpod
from unit.client.deploy.conftest import FLAGS, REQUIRED_FLAGS, Run

SCHEMA = {"$ref": "#/components/schemas/CreateEndpointRequest"}


def test_an_offline_plan_needs_no_key_sends_no_request_and_is_reproducible(
    run: Run, runpod: Runpod, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RUNPOD_API_KEY")
    words = (*FLAGS, "--offline", "--settings", "MODEL_NAME=org/model", "DTYPE=half")
    reordered = (*FLAGS, "--settings", "DTYPE=half", "MODEL_NAME=org/model", "--offline")
    first, second = run("plan", *words), run("plan", *reordered)
    assert first == second
    assert (first[0], runpod.calls) == (0, [])
    content = json.loads(first[1])
    assert first[1] == json.dumps(content, indent=2, sort_keys=True) + "\n"
    assert content["method"] == "POST"
    assert document.schema_errors(SCHEMA, content["body"]) == []


def test_a_plan_lists_each_difference_and_changes_nothing(run: Run, runpod: Runpod) -> None:
    run("apply", *FLAGS, "--settings", "MODEL_NAME=org/model", "SEED=1", "--no-wait")
    runpod.calls.clear()
    words = ("--settings", "MODEL_NAME=org/other", "DTYPE=half", "--gpu-count", "2")
    status, out, _ = run("plan", *FLAGS, *words)
    content = json.loads(out)
    assert (status, content["method"]) == (0, "PATCH")
    assert content["changes"] == [
        '+ env.DTYPE: "half"',
        '~ env.MODEL_NAME: "org/model" -> "org/other"',
        '- env.SEED: "1"',
        "~ gpu.count: 1 -> 2",
    ]
    assert [call.verb for call in runpod.calls] == ["GET"]


def test_pools_in_another_order_are_no_difference(run: Run) -> None:
    run("apply", *FLAGS, "--no-wait")
    _, out, _ = run("plan", *REQUIRED_FLAGS, "--gpu-pools", "AMPERE_24", "ADA_24")
    assert json.loads(out)["method"] is None


KEY_NOTE = "or when somebody asks for them: set BATCH_API_KEY={{ RUNPOD_SECRET_<its name> }}\n"
POOLS = "gpu_pools: which GPUs hold the model? 16 GB: AMPERE_16, 24 GB"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--settings MAX_MODEL_LENGHT=1", "did you mean MAX_MODEL_LEN?"),
        ("--settings max-model-len=1", "did you mean MAX_MODEL_LEN?"),
        ("--settings HF_MODEL=a/b", "did you mean MODEL_NAME?"),
        ("--settings VLLM_MAX_MODEL_LEN=1", "did you mean MAX_MODEL_LEN?"),
        ("--settings SWAP_SPACE=1", "SWAP_SPACE has no effect: "),
        ("--settings MAX_MODEL_LEN=abc", "MAX_MODEL_LEN: auto, or a whole number, or one"),
        ("--settings GPU_MEMORY_UTILIZATION=7", "above 0, at most 1, for example GPU_"),
        ("--settings EMBEDDING_DTYPE=bloat16", "did you mean bfloat16? one of auto, "),
        ("--settings ENFORCE_EAGER=perhaps", "one of 0/1, true/false, yes/no, on/off"),
        ("--settings MODEL_NAME=https://hf.co/org/model", "written as owner/name"),
        (
            "--image <NAME>/worker:dev",
            "image: <NAME>/worker:dev: replace the placeholder, and remove spaces",
        ),
        ("--settings MAX_CONCURRENCY=many", "auto, or a whole number, at least 1"),
        ('--settings LORA_MODULES=[{"name"', "settings: LORA_MODULES: "),
        ("--workers-min 4", "workers_min: more than workers_max"),
        ("--request-count 4 --idle-timeout-s 9", "idle_timeout_s: can't be combined"),
        ("--queue-delay-s 0.1", "queue_delay_s: "),
        ("--gpu-pools ada_48_pro", "ada_48_pro is written ADA_48_PRO"),
        ("--gpu-pools A100", "A100 is a GPU: name its pool, AMPERE_80"),
        ("--gpu-pools l40s", "l40s is a GPU: name its pool, ADA_48_PRO"),
        ("--gpu-pools H", "H is a GPU: name its pool, ADA_80_PRO or HOPPER_141"),
        ("--min-cuda 13", "min_cuda: "),
        ("--flashboot perhaps", "flashboot: "),
    ],
)
def test_mistakes_are_reported_before_any_request(
    run: Run, runpod: Runpod, words: str, message: str
) -> None:
    status, out, err = run("apply", *FLAGS, *words.split())
    assert (status, out, runpod.calls) == (2, "", [])
    assert message in err


@pytest.mark.parametrize("model", ["mistralai/Mixtral-8x7B", "gpt2", "org/model-405b"])
def test_pools_are_listed_if_none_can_be_chosen(run: Run, model: str) -> None:
    status, _, err = run("plan", *REQUIRED_FLAGS, "--settings", f"MODEL_NAME={model}", "--offline")
    assert (status, POOLS in err) == (2, True)


@pytest.mark.parametrize(
    ("settings", "pools"),
    [
        ("MODEL_NAME=Qwen/Qwen3-0.6B", "AMPERE_16"),
        ("MODEL_NAME=HuggingFaceTB/SmolLM2-135M-Instruct", "AMPERE_16"),
        ("MODEL_NAME=meta-llama/Llama-3.1-8B-Instruct", "AMPERE_24 ADA_24"),
        ("MODEL_NAME=Qwen/Qwen3-30B-A3B", "AMPERE_80 ADA_80_PRO"),
        ("MODEL_NAME=Qwen/Qwen3-32B-AWQ QUANTIZATION=awq", "ADA_32_PRO"),
    ],
)
def test_the_size_in_the_models_name_is_the_default_for_pools(
    run: Run, settings: str, pools: str
) -> None:
    _, out, err = run("plan", *REQUIRED_FLAGS, "--settings", *settings.split(), "--offline")
    assert json.loads(out)["body"]["gpu"]["pools"] == pools.split()
    assert f"gpu_pools: {pools}, by the size in the model's name\n" in err


TYPO = "did you mean MAX_MODEL_LEN?"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("NIGHTLY_JOBS=1", "NIGHTLY_JOBS is not a setting of the worker, and is passed on"),
        ("--unknown-settings MAX_MODEL_LENGHT=1", TYPO),
        ("--unknown-settings QUANTIZATION=my_plugins", "QUANTIZATION: one of "),
    ],
)
def test_a_setting_that_the_worker_does_not_know_passes_with_a_warning(
    run: Run, settings: str, message: str
) -> None:
    *flags, setting = settings.split()
    status, out, err = run("plan", *FLAGS, "--offline", *flags, "--settings", setting)
    name, _, value = setting.partition("=")
    assert (status, json.loads(out)["body"]["env"][name], message in err) == (0, value, True)


@pytest.mark.parametrize(
    "settings",
    [
        "DTYPE=BFLOAT16 SEED= QUANTIZATION=None MAX_MODEL_LEN=auto",
        "DTYPE=HALF MODEL_NAME=/models/mine SERVED_MODEL_NAME={{RUNPOD_SECRET_name}} SEED=+1",
        # Settings of the worker, of its embedding model, and of its libraries.
        "MODEL_NAME=a/b EMBEDDING_MAX_MODEL_LEN=1 MAX_CONCURRENCY=2",
        "MODEL_NAME=a/b HF_HOME=/h VLLM_LOGGING_LEVEL=INFO",
    ],
)
def test_settings_that_may_be_right_cause_no_warning(run: Run, settings: str) -> None:
    status, _, err = run("plan", *FLAGS, "--offline", "--settings", *settings.split())
    assert (status, "not a setting of the worker" in err, "did you mean" in err) == (
        0,
        False,
        False,
    )


@pytest.mark.parametrize(
    ("words", "message", "is_printed"),
    [
        ("", "MODEL_NAME is not set, so the image must have a model in it", True),
        ("--gpu-pools RUBIN_288", "this client does not know RUBIN_288, which is sent", True),
        ("--gpu-pools RUBIN_288", "that don't exist (it knows AMPERE_16 AMPERE_24 ", True),
        ("--gpu-pools AMPERE80", "that don't exist (did you mean AMPERE_80?)\n", True),
        ("--settings MODEL_NAME=a/Llama-3.1-70B", "weights may need 140 GB, or a volume", True),
        ("--settings MODEL_NAME=a/Llama-3.1-70B --volumes v", "disk_gb", False),
        ("--volumes v w", "volumes: each worker has one of them, and they don't sync", True),
        ("--volumes v v", "volumes: each", False),
        ("--volumes v", KEY_NOTE, True),
        ("--settings FILES_PATH=/files", KEY_NOTE, True),
        ("--settings FILES_PATH=", KEY_NOTE, False),
        ("--gpu-count 1", KEY_NOTE, False),
        ("--volumes v --settings BATCH_API_KEY=", KEY_NOTE, True),
        ("--volumes v --settings BATCH_API_KEY={{RUNPOD_SECRET_key}}", KEY_NOTE, False),
    ],
)
def test_a_likely_mistake_is_reported_and_accepted(
    run: Run, words: str, message: str, is_printed: bool
) -> None:
    status, _, err = run("plan", *FLAGS, *words.split(), "--offline")
    assert (status, message in err) == (0, is_printed)


NOT_TEXT = "Input should be a valid string; write a string, in quotes"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "name: ''\ngpus: 1\nimage: 7\ngpu_pools: sesame\nsettings: {A: [sesame]}\n",
            ["name: ", "gpus: ", "image: ", "gpu_pools: ", "settings.A: "],
        ),
        (
            "name: chat\nworker_max: 1\nsettings: {HF_TOKEN: , MODEL_REVISION: 2024-01-01}",
            [
                "worker_max: a plan has no such field; did you mean workers_max?",
                "image: it is required, as --image or in the file",
                f"settings.HF_TOKEN: {NOT_TEXT}",
                f"settings.MODEL_REVISION: {NOT_TEXT}",
            ],
        ),
        ("a: [sesame", ["plan.yaml, line 1, column"]),
        ("- sesame", ["plan.yaml: not a mapping"]),
        ("\x00sesame", ["plan.yaml: not valid YAML"]),
        ("sesame: \udcff", ["plan.yaml: it can't be read: it is not text"]),
        (None, ["plan.yaml: it can't be read: No such file"]),
    ],
    ids=["values", "structure", "broken", "a list", "a zero byte", "not UTF-8", "no file"],
)
def test_all_mistakes_of_a_file_are_reported_without_its_values(
    run: Run, tmp_path: Path, content: str | None, message: list[str]
) -> None:
    file = tmp_path / "plan.yaml"
    if content is not None:
        file.write_bytes(content.encode(errors="surrogateescape"))
    status, _, err = run("plan", "-f", file)
    assert (status, "sesame" in err) == (2, False)
    for text in message:
        assert text in err
