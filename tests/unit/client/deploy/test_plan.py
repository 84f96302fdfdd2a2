"""`deploy plan`: what it prints, what it refuses, and that it changes nothing."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT
from support.runpod_api import document
from support.runpod_api.server import Platform
from unit.client.deploy.conftest import FLAGS, Run

from llm_worker_client.deploy.settings import LISTING

SCHEMA = {"$ref": "#/components/schemas/CreateEndpointRequest"}


def test_a_dry_run_asks_nobody_and_gives_the_same_bytes(run: Run, there: Platform) -> None:
    words = (*FLAGS, "--offline", "--settings", "MODEL_NAME=org/model", "DTYPE=half")
    turned = (*FLAGS, "--settings", "DTYPE=half", "MODEL_NAME=org/model", "--offline")
    first, second = run("plan", *words), run("plan", *turned)
    assert first == second
    assert (first[0], there.calls) == (0, [])
    content = json.loads(first[1])
    assert first[1] == json.dumps(content, indent=2, sort_keys=True) + "\n"
    assert content["method"] == "POST"
    assert document.wrong_with(SCHEMA, content["body"]) == []


def test_the_program_itself_needs_neither_the_worker_nor_a_key_for_a_dry_run() -> None:
    words = ["-X", "importtime", "-m", "llm_worker_client", "deploy", "plan", *FLAGS, "--offline"]
    environ = {"PYTHONPATH": str(ROOT / "src"), "PATH": os.environ["PATH"]}
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, check=True, env=environ
    )
    assert json.loads(done.stdout)["body"]["name"] == "chat"
    imported = {line.rpartition("|")[2].strip().split(".")[0] for line in done.stderr.splitlines()}
    assert "llm_worker_client" in imported
    assert not imported & {"worker", "vllm", "torch", "transformers", "runpod"}


def test_a_plan_tells_each_difference_and_changes_nothing(run: Run, there: Platform) -> None:
    run("apply", *FLAGS, "--settings", "MODEL_NAME=org/model", "SEED=1", "--no-wait")
    there.calls.clear()
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
    assert [call.verb for call in there.calls] == ["GET"]


def test_pools_in_another_order_are_no_difference(run: Run) -> None:
    run("apply", *FLAGS, "--no-wait")
    words = ("--name", "chat", "--image", "me/llm-worker:1")
    _, out, _ = run("plan", *words, "--gpu-pools", "AMPERE_24", "ADA_24")
    assert json.loads(out)["method"] is None


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--settings", "MAX_MODEL_LENGHT=1"), "did you mean MAX_MODEL_LEN?"),
        (("--settings", "max-model-len=1"), "did you mean MAX_MODEL_LEN?"),
        (("--settings", "HF_MODEL=a/b"), "did you mean MODEL_NAME?"),
        (("--settings", "VLLM_MAX_MODEL_LEN=1"), "did you mean MAX_MODEL_LEN?"),
        (("--settings", "SWAP_SPACE=1"), "SWAP_SPACE has no effect: "),
        (
            ("--settings", "MAX_MODEL_LEN=abc"),
            "settings: MAX_MODEL_LEN: auto, or a whole number, or one",
        ),
        (("--settings", "GPU_MEMORY_UTILIZATION=7"), "above 0, at most 1, for example GPU_"),
        (("--settings", "EMBEDDING_DTYPE=bloat16"), "did you mean bfloat16? one of auto, "),
        (("--settings", "ENFORCE_EAGER=perhaps"), "one of 0/1, true/false, yes/no, on/off"),
        (("--settings", "MODEL_NAME=https://hf.co/org/model"), "written as owner/name"),
        (("--settings", "MAX_CONCURRENCY=many"), "auto, or a whole number, at least 1"),
        (("--settings", 'LORA_MODULES=[{"name"'), "settings: LORA_MODULES: "),
        (("--workers-min", "4"), "workers_min: more than workers_max"),
        (("--request-count", "4", "--idle-timeout-s", "9"), "idle_timeout_s: not together"),
        (("--queue-delay-s", "0.1"), "queue_delay_s: "),
        (("--gpu-pools", "ada_48_pro"), "ada_48_pro is written ADA_48_PRO"),
        (("--min-cuda", "13"), "min_cuda: "),
        (("--flashboot", "perhaps"), "flashboot: "),
    ],
)
def test_what_is_wrong_is_told_before_anything_is_asked(
    run: Run, there: Platform, words: tuple[str, ...], told: str
) -> None:
    status, out, err = run("apply", *FLAGS, *words)
    assert (status, out, there.calls) == (2, "", [])
    assert told in err


@pytest.mark.parametrize(
    ("model", "more", "pools"),
    [
        ("Qwen/Qwen3-0.6B", (), ["AMPERE_16"]),
        ("HuggingFaceTB/SmolLM2-135M-Instruct", (), ["AMPERE_16"]),
        ("meta-llama/Llama-3.1-8B-Instruct", (), ["AMPERE_24", "ADA_24"]),
        ("Qwen/Qwen3-30B-A3B", (), ["AMPERE_80", "ADA_80_PRO"]),
        ("Qwen/Qwen3-32B-AWQ", ("QUANTIZATION=awq",), ["ADA_32_PRO"]),
    ],
)
def test_without_pools_the_models_name_chooses_them(
    run: Run, model: str, more: tuple[str, ...], pools: list[str]
) -> None:
    words = ("--name", "chat", "--image", "a/b:1", "--settings", f"MODEL_NAME={model}", *more)
    status, out, err = run("plan", *words, "--offline")
    assert (status, json.loads(out)["body"]["gpu"]["pools"]) == (0, pools), err
    assert f"gpu_pools: {' '.join(pools)}, by the size in the model's name\n" in err


@pytest.mark.parametrize(("more", "told"), [((), True), (("--volumes", "v"), False)])
def test_a_disk_that_the_model_does_not_fit_on_is_told(
    run: Run, more: tuple[str, ...], told: bool
) -> None:
    words = ("--settings", "MODEL_NAME=meta-llama/Llama-3.1-70B", "--offline")
    _, _, err = run("plan", *FLAGS, *words, *more)
    assert ("disk_gb: the model's weights may need 140 GB, or a volume" in err) is told


@pytest.mark.parametrize("model", ["mistralai/Mixtral-8x7B", "gpt2", "org/model-405b"])
def test_pools_that_can_not_be_chosen_are_listed(run: Run, model: str) -> None:
    words = ("--name", "chat", "--image", "a/b:1", "--settings", f"MODEL_NAME={model}")
    status, _, err = run("plan", *words, "--offline")
    assert (status, "gpu_pools: which GPUs hold the model? 16 GB: AMPERE_16, 24 GB" in err) == (
        2,
        True,
    )


def test_pools_that_are_new_are_told_and_passed_on(run: Run) -> None:
    words = ("--gpu-pools", "RUBIN_288", "--offline")
    status, out, err = run("plan", *FLAGS[:4], *words)
    assert (status, json.loads(out)["body"]["gpu"]["pools"]) == (0, ["RUBIN_288"])
    assert "gpu_pools: RUBIN_288 is not known here\n" in err


def test_a_model_that_only_the_image_can_have_is_told(run: Run) -> None:
    _, _, err = run("plan", *FLAGS, "--offline")
    assert "MODEL_NAME is not set, so the image must have a model in it" in err


def test_all_mistakes_of_a_file_are_told_without_its_values(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "endpoint.yaml"
    file.write_text("name: ''\ngpus: 1\nimage: 7\ngpu_pools: sesame\nsettings: {A: [sesame]}\n")
    status, _, err = run("plan", "-f", file)
    assert status == 2
    for field in ("name", "gpus", "image", "gpu_pools", "settings.A"):
        assert f"{field}: " in err
    assert "sesame" not in err


@pytest.mark.parametrize("content", ["a: [sesame", "- sesame", "\x00sesame", "sesame: \udcff"])
def test_a_file_that_is_no_plan_is_told_without_its_content(
    run: Run, tmp_path: Path, content: str
) -> None:
    file = tmp_path / "endpoint.yaml"
    file.write_bytes(content.encode(errors="surrogateescape"))
    status, _, err = run("plan", "-f", file)
    assert status == 2
    assert str(file) in err
    assert "sesame" not in err


def test_mistakes_in_the_form_of_a_file_say_what_to_write(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "endpoint.yaml"
    file.write_text("name: chat\nworker_max: 1\nsettings: {HF_TOKEN: , MODEL_REVISION: 2024-01-01}")
    _, _, err = run("plan", "-f", file)
    assert "worker_max: a plan has no such field; did you mean workers_max?" in err
    assert "image: it is required, as --image or in the file" in err
    for name in ("HF_TOKEN", "MODEL_REVISION"):
        assert f"settings.{name}: Input should be a valid string; write a text, in quotes" in err


def test_a_file_that_is_missing_is_told(run: Run, tmp_path: Path) -> None:
    status, _, err = run("plan", "-f", tmp_path / "none.yaml")
    assert (status, "can't be read" in err) == (2, True)


def test_settings_of_others_are_passed_on_and_told(run: Run) -> None:
    status, out, err = run("plan", *FLAGS, "--offline", "--settings", "NIGHTLY_JOBS=1")
    assert (status, json.loads(out)["body"]["env"]["NIGHTLY_JOBS"]) == (0, "1")
    assert "NIGHTLY_JOBS is no setting of the worker: passed on" in err


def test_what_may_be_right_of_a_value_is_the_workers_to_say(run: Run) -> None:
    pairs = ["DTYPE=BFLOAT16", "SEED=", "QUANTIZATION=None", "MAX_MODEL_LEN=auto", "DTYPE=HALF"]
    pairs += ["MODEL_NAME=/models/mine", "SERVED_MODEL_NAME={{ RUNPOD_SECRET_name }}", "SEED=+1"]
    assert run("plan", *FLAGS, "--offline", "--settings", *pairs)[0] == 0


def test_values_that_look_wrong_are_taken_on_demand(run: Run) -> None:
    words = ("--offline", "--unknown-settings", "--settings", "QUANTIZATION=my_plugins")
    status, out, err = run("plan", *FLAGS, *words)
    assert (status, json.loads(out)["body"]["env"]["QUANTIZATION"]) == (0, "my_plugins")
    assert "QUANTIZATION: one of " in err


def test_names_that_look_wrong_are_taken_on_demand(run: Run) -> None:
    words = ("--offline", "--unknown-settings", "--settings", "MAX_MODEL_LENGHT=1")
    status, out, err = run("plan", *FLAGS, *words)
    assert (status, json.loads(out)["body"]["env"]["MAX_MODEL_LENGHT"]) == (0, "1")
    assert "did you mean MAX_MODEL_LEN?" in err


@pytest.mark.parametrize(
    "name",
    ["MODEL_NAME", "EMBEDDING_MAX_MODEL_LEN", "HF_HOME", "MAX_CONCURRENCY", "VLLM_LOGGING_LEVEL"],
)
def test_settings_of_the_worker_and_its_libraries_are_known(name: str) -> None:
    assert LISTING.doubt(name) is None
    assert LISTING.unknown([name]) == []
