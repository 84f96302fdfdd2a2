"""`deploy apply` against a platform that holds each request to its published document."""

from pathlib import Path

import pytest
from support.runpod_api.endpoints import volume, worker
from support.runpod_api.server import Fault, Platform
from unit.client.deploy.conftest import FLAGS, Run

SETTINGS = ("--settings", "MODEL_NAME=org/model", "HF_TOKEN={{ RUNPOD_SECRET_hf }}")


def test_an_endpoint_is_created_with_what_this_worker_wants(run: Run, there: Platform) -> None:
    status, out, err = run("apply", *FLAGS, *SETTINGS)
    assert (status, out) == (0, "ep1\n"), err
    (created,) = there.endpoints.values()
    assert created["flashboot"] == "FLASHBOOT"
    assert created["timeout"] == 600_000
    assert created["gpu"]["minCudaVersion"] == "13.0"
    assert created["workers"] == {"min": 0, "max": 3, "idleTimeout": 60}
    assert created["env"]["MAX_CONCURRENCY"] == "auto"
    assert "workers: 1 initializing" in err
    assert f"created: ep1, for OpenAI's clients {there.url}/queue/ep1/openai/v1\n" in err
    assert "answered: " in err


def test_the_text_of_the_first_chat_is_shown(run: Run, there: Platform) -> None:
    said = {"choices": [{"message": {"role": "assistant", "content": "Hi there!"}}]}
    there.result = {"status": "COMPLETED", "workerId": "w1", "output": [said]}
    assert "answered: Hi there!\n" in run("apply", *FLAGS)[2]


def test_a_second_run_changes_nothing_and_starts_no_worker(run: Run, there: Platform) -> None:
    run("apply", *FLAGS, *SETTINGS)
    there.calls.clear()
    status, out, err = run("apply", *FLAGS, *SETTINGS)
    assert (status, out, err) == (0, "ep1\n", "nothing to change\n")
    assert [call.verb for call in there.calls] == ["GET"]


@pytest.mark.parametrize(
    ("words", "changed"),
    [
        (("--timeout-s", "900"), {"timeout", "env"}),
        (("--settings", "MAX_MODEL_LEN=8k"), {"env"}),
        (("--workers-max", "5"), {"workers", "scaling"}),
        (("--request-count", "32"), {"workers", "scaling"}),
        (("--gpu-count", "2"), {"gpu"}),
        (("--volumes", "vol1", "--data-centers", "US-KS-2"), {"networkVolumes", "dataCenterIds"}),
        (("--image", "me/llm-worker:2"), {"image"}),
    ],
)
def test_a_third_run_patches_what_has_changed_and_a_fourth_nothing(
    run: Run, there: Platform, words: tuple[str, ...], changed: set[str]
) -> None:
    there.volumes = [volume("vol1", "US-KS-2")]
    run("apply", *FLAGS, *SETTINGS)
    there.calls.clear()
    for _ in range(2):
        status, _, err = run("apply", *FLAGS, *SETTINGS, *words)
        assert status == 0, err
    (patch,) = there.changes
    assert (patch.verb, patch.path) == ("PATCH", "/v2/serverless/ep1")
    assert patch.body.keys() == changed


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--volumes", "vol2"], "there is no vol2, but vol1 (my vol1, US-KS-2)"),
        (["--volumes", "vol1", "--data-centers", "EU-RO-1"], "vol1 lies in US-KS-2, which data_"),
    ],
)
def test_a_volume_that_no_worker_could_have_is_refused(
    run: Run, there: Platform, words: list[str], told: str
) -> None:
    there.volumes = [volume("vol1", "US-KS-2")]
    status, _, err = run("apply", *FLAGS, *words)
    assert (status, there.changes, told in err) == (2, [], True)


def test_a_key_that_may_not_list_volumes_is_enough(run: Run, there: Platform) -> None:
    there.faults.append(Fault("GET", 403, end="/network-volumes"))
    assert run("apply", *FLAGS, "--volumes", "vol1")[0] == 0


def test_what_a_plan_does_not_name_stays(run: Run, there: Platform) -> None:
    there.add(name="chat", registry="reg", args="--serve", networkVolumes=["v"], ports=["1/http"])
    assert run("apply", *FLAGS, *SETTINGS)[0] == 0
    (endpoint,) = there.endpoints.values()
    kept = ("registry", "args", "networkVolumes", "ports")
    assert [endpoint[key] for key in kept] == ["reg", "--serve", ["v"], ["1/http"]]


def test_an_endpoint_whose_name_has_the_platforms_mark_is_found(run: Run, there: Platform) -> None:
    there.add(name="chat -fb")
    assert run("apply", *FLAGS, "--no-wait")[0] == 0
    assert [one["name"] for one in there.endpoints.values()] == ["chat -fb"]


def test_listed_cuda_versions_make_room_for_a_lowest_one(run: Run, there: Platform) -> None:
    gpu = {"pools": ["ADA_24"], "count": 1, "allowedCudaVersions": ["12.8"], "minCudaVersion": None}
    there.add(name="chat", gpu=gpu)
    status, _, err = run("apply", *FLAGS, "--no-wait")
    assert status == 0, err
    (endpoint,) = there.endpoints.values()
    assert endpoint["gpu"]["allowedCudaVersions"] == []


def test_a_file_is_a_plan_and_flags_win(run: Run, there: Platform, tmp_path: Path) -> None:
    file = tmp_path / "endpoint.yaml"
    file.write_text(
        "name: chat\nimage: me/llm-worker:1-cu129\ngpu_pools: [ADA_80_PRO]\nflashboot: off\n"
        "settings: {MODEL_NAME: org/model, MAX_MODEL_LEN: 4096, ENFORCE_EAGER: true}\n"
    )
    assert run("apply", "-f", file, "--settings", "MAX_MODEL_LEN=8k", "--no-wait")[0] == 0
    (endpoint,) = there.endpoints.values()
    assert endpoint["flashboot"] == "OFF"
    assert endpoint["gpu"]["minCudaVersion"] == "12.9"
    wanted = {"MODEL_NAME": "org/model", "MAX_MODEL_LEN": "8k", "ENFORCE_EAGER": "1"}
    assert endpoint["env"] == wanted | {"MAX_CONCURRENCY": "auto", "RUNPOD_INIT_TIMEOUT": "1200"}


def test_two_endpoints_of_one_name_are_left_alone(run: Run, there: Platform) -> None:
    there.add(name="chat")
    there.add(name="chat")
    status, _, err = run("apply", *FLAGS)
    assert (status, there.changes) == (1, [])
    assert "ep1, ep2" in err


@pytest.mark.parametrize("given", [{"type": "LOAD_BALANCER"}, {"gpu": None}])
def test_an_endpoint_of_another_kind_is_refused(
    run: Run, there: Platform, given: dict[str, object]
) -> None:
    scaling = {"type": "REQUEST_COUNT", "requestCount": 4}
    there.add(name="chat", scaling=scaling, **given)
    status, _, err = run("apply", *FLAGS)
    assert (status, there.changes) == (2, [])
    assert "another kind" in err


def test_workers_of_the_earlier_version_do_not_count_as_an_answer(
    run: Run, there: Platform
) -> None:
    there.add(name="chat")
    there.workers.append(worker("old", "IDLE", stale=True))
    status, _, err = run("apply", *FLAGS, *SETTINGS)
    assert status == 0, err
    first_run = next(i for i, call in enumerate(there.calls) if call.path.endswith("/run"))
    looks = [call for call in there.calls[:first_run] if call.path.endswith("/workers")]
    assert len(looks) == 2


def test_an_embedding_model_is_sent_a_text(run: Run, there: Platform) -> None:
    assert run("apply", *FLAGS, "--settings", "MODEL_NAME=a/b", "RUNNER=pooling")[0] == 0
    (sent,) = (call.body for call in there.calls if call.path.endswith("/run"))
    assert sent["input"]["openai_route"] == "/v1/embeddings"
