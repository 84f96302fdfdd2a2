"""Shares of the GPUs' time, with a clock that stands still between the events of a test."""

from contextvars import Context
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.engine.run.requests.gpu_time import ChargedRequests, GpuTime
from worker.record import EngineUse, engine_use


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_requests_that_run_together_share_the_time_equally() -> None:
    clock = Clock()
    gpu_time = GpuTime(clock)
    first = gpu_time.start_request()
    clock.now += 4
    second = gpu_time.start_request()
    clock.now += 2
    assert gpu_time.end_request(first) == 4 + 1
    clock.now += 3
    assert gpu_time.end_request(second) == 1 + 3
    clock.now += 50
    assert gpu_time.busy_s == 9


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100)), min_size=1))
def test_all_shares_add_up_to_the_time_with_any_request(spans: list[tuple[float, float]]) -> None:
    """For requests that start and end at any times, as (start, duration)."""
    clock = Clock()
    gpu_time = GpuTime(clock)
    starts = [(start, 0, number) for number, (start, _) in enumerate(spans)]
    ends = [(start + duration, 1, number) for number, (start, duration) in enumerate(spans)]
    readings: dict[int, float] = {}
    shares: list[float] = []
    busy = 0.0
    for moment, is_end, number in sorted(starts + ends):
        busy += moment - clock.now if len(readings) > len(shares) else 0
        clock.now = moment
        if is_end:
            shares.append(gpu_time.end_request(readings[number]))
        else:
            readings[number] = gpu_time.start_request()
    assert len(shares) == len(spans)
    assert sum(shares) == pytest.approx(busy, abs=1e-6)
    assert gpu_time.busy_s == pytest.approx(busy, abs=1e-6)


def make_client(*, world: int = 1, ranks: int = 1, device: str = "cuda") -> Any:
    config = SimpleNamespace(
        parallel_config=SimpleNamespace(world_size=world, data_parallel_size=ranks),
        device_config=SimpleNamespace(device_type=device),
        model_config=SimpleNamespace(served_model_name="demo"),
    )
    processor = SimpleNamespace(request_states={})
    return SimpleNamespace(vllm_config=config, output_processor=processor)


def make_state(*, index: int = 0, adapter: str | None = None) -> Any:
    """Return a request with 7 tokens, of which 2 were cached, and 5 new tokens."""
    stats = SimpleNamespace(
        num_generation_tokens=5, num_preemptions=1, scheduled_ts=3.0, first_token_ts=4.0
    )
    return SimpleNamespace(
        prompt_len=7, num_cached_tokens=2, lora_name=adapter, request_index=index, stats=stats
    )


def send(requests: ChargedRequests, id: str, state: Any, use: EngineUse | None = None) -> None:
    """Send a request to the engine, in the context of a job, if any."""
    context = Context()
    if use:
        context.run(engine_use.set, use)
    context.run(requests.__setitem__, id, state)


def test_a_request_is_charged_to_its_job_when_it_leaves_the_engine() -> None:
    clock, client, use = Clock(), make_client(), EngineUse()
    requests = ChargedRequests(client, GpuTime(clock))
    assert client.output_processor.request_states is requests
    state = make_state()
    send(requests, "a", state, use)
    clock.now += 2
    assert use.gpu_seconds == 0
    assert requests.pop("a") is state
    assert requests == {}
    assert use == EngineUse(
        model="demo",
        requests=1,
        prompt_tokens=7,
        cached_tokens=2,
        output_tokens=5,
        preemptions=1,
        computed_from=3.0,
        first_token_at=4.0,
        gpu_seconds=2.0,
    )


def test_the_choices_of_a_request_have_one_prompt_and_shares_of_their_own() -> None:
    clock, use = Clock(), EngineUse()
    requests = ChargedRequests(make_client(), GpuTime(clock))
    for index in range(3):
        send(requests, f"a-{index}", make_state(index=index, adapter="lora"), use)
    clock.now += 6
    for index in range(3):
        requests.pop(f"a-{index}", None)
    assert requests.pop("a-0", None) is None
    assert (use.prompt_tokens, use.cached_tokens, use.output_tokens) == (7, 2, 15)
    assert (use.model, use.requests, use.gpu_seconds) == ("lora", 3, 6.0)


@pytest.mark.parametrize(
    ("client", "gpus"),
    [
        (make_client(world=4, ranks=2), 8),
        (make_client(world=2, device="cpu"), 1),
    ],
)
def test_the_time_of_all_gpus_of_an_engine_counts(client: Any, gpus: int) -> None:
    clock, use = Clock(), EngineUse()
    requests = ChargedRequests(client, GpuTime(clock))
    send(requests, "a", make_state(), use)
    clock.now += 1
    requests.pop("a")
    assert use.gpu_seconds == gpus


def test_a_request_of_a_dead_engine_is_charged_until_its_job_ends_and_only_once() -> None:
    clock, use = Clock(), EngineUse()
    gpu_time = GpuTime(clock)
    requests = ChargedRequests(make_client(), gpu_time)
    send(requests, "a", make_state(), use)
    clock.now += 1
    use.end_requests()
    clock.now += 10
    requests.pop("a")
    assert use.gpu_seconds == gpu_time.busy_s == 1


def test_the_part_of_a_job_is_charged_to_the_job_too() -> None:
    clock, job = Clock(), EngineUse()
    requests = ChargedRequests(make_client(), GpuTime(clock))
    lines = [job.create_part() for _ in range(2)]
    for number, line in enumerate(lines):
        send(requests, str(number), make_state(), line)
    clock.now += 3
    for number in range(2):
        requests.pop(str(number))
    assert [line.gpu_seconds for line in lines] == [1.5, 1.5]
    assert (job.gpu_seconds, job.requests, job.output_tokens) == (3.0, 2, 10)


def test_requests_outside_of_jobs_share_the_time_too() -> None:
    clock = Clock()
    gpu_time = GpuTime(clock)
    requests = ChargedRequests(make_client(), gpu_time)
    send(requests, "warm-up", make_state())
    clock.now += 5
    requests.pop("warm-up")
    assert gpu_time.busy_s == 5
