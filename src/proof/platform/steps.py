"""The table of observations: the documented behaviour, the function, the place in the emulator."""

from collections.abc import Callable
from dataclasses import dataclass

from proof.platform import observations
from proof.platform.observations import START_LIMIT_S, StepResult
from proof.platform.target import EndpointTarget


@dataclass(frozen=True)
class ProofStep:
    """An observation."""

    name: str  # also of its row in the report
    documented: str  # the behaviour according to the pages
    observe: Callable[[EndpointTarget], StepResult]
    place: str  # in src/emulator, that imitates it: a file and a name
    limit_s: float = 180.0
    needs_volume: bool = False
    fails_to_start: bool = False  # whether the target is the endpoint whose workers fail to start


_LONG_S = 2 * START_LIMIT_S

# Steps that remove workers are at the end: each leaves the endpoint as the next one needs it.
STEPS = (
    ProofStep(
        "models",
        "The gateway passes a GET on, and the worker lists its models.",
        observations.list_models,
        "http/gateways.py: OpenAIGateway.answer_request",
    ),
    ProofStep(
        "chat",
        "A chat has one response; its id contains the job's id.",
        observations.chat,
        "http/gateways.py: OpenAIGateway._send_whole",
    ),
    ProofStep(
        "streamed chat",
        "Chunks of events arrive while the job runs; the last event is [DONE].",
        observations.stream_chat,
        "http/gateways.py: JobResponder._stream_job",
    ),
    ProofStep(
        "completion",
        "A completion has one response; its id contains the job's id.",
        observations.complete_text,
        "http/gateways.py: OpenAIGateway._send_whole",
    ),
    ProofStep(
        "runsync",
        "The response is the finished job with its yields.",
        observations.run_synchronously,
        "job.py: Job.status_json",
    ),
    ProofStep(
        "run and stream",
        "Each call of /stream returns the chunks since the last one: 1, 3, 9, 27 and 10 tokens.",
        observations.follow_stream,
        "http/public_api.py: PublicApi.stream",
    ),
    ProofStep(
        "job with one yield",
        "The yield of an unstreamed job is in its status only.",
        observations.read_whole_job,
        "http/public_api.py: PublicApi.stream",
    ),
    ProofStep(
        "health",
        "The counts of jobs and workers.",
        observations.read_health,
        "job_queue.py: Queue.health",
    ),
    ProofStep(
        "other methods",
        "Not documented: a job has no field for the method.",
        observations.send_other_methods,
        "http/gateways.py: OpenAIGateway.answer_request",
    ),
    ProofStep(
        "form",
        "Not documented: an upload of a file.",
        observations.send_form,
        "http/gateways.py: OpenAIGateway.answer_request",
    ),
    ProofStep(
        "query",
        "Not documented: the query of a request.",
        observations.send_query,
        "http/gateways.py: OpenAIGateway.answer_request",
    ),
    ProofStep(
        "failed job",
        "The job is FAILED; the status at the gateway is not documented.",
        observations.fail_job,
        "options.py: FailedJobHandling",
    ),
    ProofStep(
        "oversize request",
        "10 MB for /run and 20 MB for /runsync; the status is not documented.",
        observations.send_oversize,
        "options.py: Options.oversize_status, MAX_RUN_BYTES, MAX_RUNSYNC_BYTES",
    ),
    ProofStep(
        "cancel",
        "The job is CANCELLED, and the worker stops it.",
        observations.cancel_running_job,
        "job_queue.py: Queue.cancel",
    ),
    ProofStep(
        "caller hangs up",
        "Not documented: whether the job of a closed connection is cancelled.",
        observations.hang_up,
        "options.py: Options.cancel_on_disconnect",
    ),
    ProofStep(
        "execution timeout",
        "The job is TIMED_OUT after its executionTimeout.",
        observations.exceed_execution_timeout,
        "job_queue.py: Queue._handle_deadline",
    ),
    ProofStep(
        "two workers",
        "The platform adds a worker while jobs wait.",
        observations.share_load,
        "fleet.py: Fleet.start_workers",
        _LONG_S,
    ),
    ProofStep(
        "idle workers",
        "Workers end after the idle timeout, or are frozen; a later job starts or thaws one.",
        observations.leave_idle,
        "fleet.py: Fleet._supervise",
        _LONG_S,
    ),
    ProofStep(
        "batch without its worker",
        "A batch resumes on another worker, and each line is in its output once.",
        observations.resume_batch,
        "options.py: LostJobHandling",
        _LONG_S,
        needs_volume=True,
    ),
    ProofStep(
        "removed worker",
        "The worker receives SIGTERM; its jobs fail with a retryable error after 25 seconds.",
        observations.remove_busy_worker,
        "options.py: LostJobHandling",
        600.0,
    ),
    ProofStep(
        "expired job",
        "The documentation says both that the job is TIMED_OUT and that it is deleted.",
        observations.expire_in_queue,
        "options.py: ExpiredJobHandling",
        400.0,
    ),
    ProofStep(
        "gateway's timeout",
        "After 100 seconds without a response, 524 with an HTML page; the job continues.",
        observations.exceed_gateway_timeout,
        "http/app.py: GatewayTimeout; job_queue.py: Queue.purge",
        400.0,
    ),
    ProofStep(
        "cold start",
        "A job waits for a worker: delayTime is its time in the queue.",
        observations.start_cold,
        "job_queue.py: Worker.state",
        _LONG_S,
    ),
    ProofStep(
        "failed start",
        "Each caller gets the reason, which names the setting.",
        observations.fail_start,
        "fleet.py: Fleet._run_worker",
        _LONG_S,
        fails_to_start=True,
    ),
)
