"""Validates the desired state of an endpoint, and converts it to the body of a request."""

import json
import re
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from llm_worker_client.deploy.errors import PlanError
from llm_worker_client.deploy.settings import LISTING, contains_secret, find_similar_name

# The GB of each GPU and the names of the GPUs, by the platform's name of the pool.
POOLS: dict[str, dict[str, Any]] = json.loads(
    resources.files(__package__).joinpath("pools.json").read_text(encoding="utf-8")
)
_POOLS_BY_GB = {
    gb: [name for name, pool in POOLS.items() if pool["gb"] == gb]
    for gb in sorted({pool["gb"] for pool in POOLS.values()})
}
_POOLS_TEXT = ", ".join(f"{gb} GB: {' '.join(names)}" for gb, names in _POOLS_BY_GB.items())

# The number of parameters in a model's name, such as 7b.
_PARAMETER_COUNT = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)([bm])(?![a-z])", re.IGNORECASE)
# GB per billion parameters, with 16 bits each, or quantized to 4 bits.
_GB_PER_BILLION, _GB_PER_BILLION_QUANTIZED = 2.0, 0.75
# Minimum GPU memory as a multiple of the weights' size; the rest is for the KV cache.
KV_CACHE_FACTOR = 1.2
_QUANTIZED_PREFIXES = ("awq", "gptq")
# The CUDA version of a variant of the image, at the end of its tag: 0.1.0-vllm0.32.0-cu129.
_CUDA_TAG = re.compile(r"-cu(\d+)(\d)$")
# Words and characters that names of GPUs may lack.
_GPU_WORDS = re.compile(r"NVIDIA|GEFORCE|RTX|[\s_-]")
_TIMEOUT_SETTING = "EXECUTION_TIMEOUT_S"
# GB of a container's disk that caches and a download's temporary files may need.
_SPARE_DISK_GB = 5
# The platform's default for a worker's startup, 420 s, is too short for a model's download.
_INIT_TIMEOUT_ENV = {"RUNPOD_INIT_TIMEOUT": "1200"}
# The worker logs the same sentence, up to the value.
NO_BATCH_KEY = (
    "settings: batches and fine-tunes that a job's time limit or a stopped worker interrupts "
    "continue only while a worker is up, or when somebody asks for them: set "
    "BATCH_API_KEY={{ RUNPOD_SECRET_<its name> }}"
)
SEVERAL_VOLUMES = (
    "volumes: each worker has one of them, and they don't synchronise: weights are downloaded to "
    "each, and a file, batch, fine-tune or adapter is on one only; name one volume if callers use "
    "these"
)
_FLASHBOOT_MODES = {"off": "OFF", "on": "FLASHBOOT", "priority": "PRIORITY_FLASHBOOT"}


def _to_setting_text(value: object) -> object:
    """Convert a boolean or number of YAML to the text of an environment variable."""
    if isinstance(value, bool):
        return "1" if value else "0"
    return str(value) if isinstance(value, int | float) else value


def _bool_to_on_off(value: object) -> object:
    """Convert YAML's ``on`` and ``off``, which it parses as booleans, back to strings."""
    return ("on" if value else "off") if isinstance(value, bool) else value


Text = Annotated[str, Field(min_length=1)]
Setting = Annotated[str, BeforeValidator(_to_setting_text)]
CudaVersion = Annotated[str, BeforeValidator(_to_setting_text), Field(pattern=r"^\d+\.\d+$")]


class EndpointPlan(BaseModel):
    """The desired state of an endpoint. The defaults suit this worker.

    If volumes, data_centers, registry or args are not set, an existing endpoint keeps its values.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    name: Text = Field(description="the endpoint's name, which identifies it")
    image: Text = Field(pattern=r"^[^\s<>]+$", description="the worker's image, with its tag")
    settings: dict[Text, Setting] = Field({}, description="the worker's settings, as NAME=VALUE")
    gpu_pools: list[Text] | None = Field(
        None, min_length=1, description=f"GPU pools; default: by the model's size ({_POOLS_TEXT})"
    )
    gpu_count: int = Field(1, ge=1, description="GPUs per worker")
    exclude_gpus: list[Text] = Field([], description="GPU types of the pools to exclude")
    min_cuda: CudaVersion | None = Field(
        None, description="minimum CUDA version of hosts; by default the image's requirement"
    )
    disk_gb: int = Field(60, ge=1, description="GB of disk per container")
    volumes: list[Text] | None = Field(None, description="ids of network volumes")
    data_centers: list[Text] | None = Field(None, description="ids of data centers")
    registry: Text | None = Field(None, description="id of a private registry's credentials")
    args: str | None = Field(None, description="the container's start command")
    workers_min: int = Field(0, ge=0, description="workers that always run, at your cost")
    workers_max: int = Field(
        3, ge=1, description="maximum number of workers, which limits the cost"
    )
    idle_timeout_s: int = Field(
        60,
        ge=1,
        le=3600,
        description="seconds that an idle worker waits for jobs; not with --request-count",
    )
    queue_delay_s: float | None = Field(
        None, ge=0.5, description="seconds in the queue after which a worker is added (default: 4)"
    )
    request_count: int | None = Field(
        None, ge=1, description="jobs per worker, instead of --queue-delay-s"
    )
    timeout_s: int = Field(600, ge=1, description="seconds that a job may run")
    flashboot: Annotated[Literal["off", "on", "priority"], BeforeValidator(_bool_to_on_off)] = (
        Field("on", description="whether stopped workers resume fast")
    )

    def to_request_body(self) -> dict[str, Any]:
        """Return the body of the request that would create the endpoint."""
        env = {**_INIT_TIMEOUT_ENV, **self.settings}
        if self.timeout_s != 600:
            # A batch must know the time limit of its job.
            env.setdefault(_TIMEOUT_SETTING, str(self.timeout_s))
        variant = _CUDA_TAG.search(self.image)
        image_cuda = f"{variant[1]}.{variant[2]}" if variant else LISTING.cuda
        body: dict[str, Any] = {
            "name": self.name,
            "type": "QUEUE",
            "image": self.image,
            "env": env,
            "gpu": {
                "pools": self.gpu_pools,
                "count": self.gpu_count,
                "minCudaVersion": self.min_cuda or image_cuda,
            },
            "disk": self.disk_gb,
            "workers": {"min": self.workers_min, "max": self.workers_max},
            "timeout": self.timeout_s * 1000,
            "flashboot": _FLASHBOOT_MODES[self.flashboot],
        }
        if self.exclude_gpus:
            body["gpu"]["excludedTypes"] = self.exclude_gpus
        if self.request_count is not None:
            # The platform refuses an idle timeout together with this scaling type.
            body["scaling"] = {"type": "REQUEST_COUNT", "requestCount": self.request_count}
        else:
            body["workers"]["idleTimeout"] = self.idle_timeout_s
            delay = 4 if self.queue_delay_s is None else self.queue_delay_s
            body["scaling"] = {"type": "QUEUE_DELAY", "queueDelay": delay}
        optional = {
            "networkVolumes": self.volumes,
            "dataCenterIds": self.data_centers,
            "registry": self.registry,
            "args": self.args,
        }
        return body | {key: value for key, value in optional.items() if value is not None}


def validate_plan(
    fields: dict[str, Any], *, allow_unknown: bool = False
) -> tuple[EndpointPlan, list[str]]:
    """Validate a plan, and choose its GPU pools by the model's size if it names none.

    Returns:
        The plan, and remarks about it for the user.

    Raises:
        PlanError: Its message lists all mistakes and no settings' values.
    """
    try:
        plan = EndpointPlan.model_validate(fields)
    except ValidationError as exc:
        raise PlanError([_describe_field_error(error) for error in exc.errors()]) from None
    model, quantization = (
        plan.settings.get(name, "").strip() for name in ("MODEL_NAME", "QUANTIZATION")
    )
    weights = estimate_weights_gb(model, quantization)
    pools = plan.gpu_pools
    if pools is None:
        gb = None if weights is None else weights * KV_CACHE_FACTOR / plan.gpu_count
        pools = [] if gb is None else smallest_gpu_pools(gb)
    mistakes = [*_find_mistakes(plan, pools)]
    problems = {
        name: LISTING.name_error(name) or LISTING.value_error(name, value)
        for name, value in sorted(plan.settings.items())
    }
    if not allow_unknown:
        mistakes += [f"settings: {problem}" for problem in problems.values() if problem]
    if mistakes:
        raise PlanError(mistakes)
    unknown = [key for key in problems if not problems[key] and key not in LISTING.known_variables]
    remarks = [problem for problem in problems.values() if problem]
    remarks += [f"{name} is not a setting of the worker, and is passed on" for name in unknown]
    for name in pools:
        if name not in POOLS:
            similar = find_similar_name(name.upper(), POOLS)
            hint = f"did you mean {similar}?" if similar else f"it knows {' '.join(POOLS)}"
            remarks += [
                f"gpu_pools: this client does not know {name}, which is sent as it is: the "
                f"platform refuses pools that don't exist ({hint})"
            ]
    if plan.gpu_pools is None:
        remarks += [f"gpu_pools: {' '.join(pools)}, by the size in the model's name"]
    if weights and weights > plan.disk_gb - _SPARE_DISK_GB and not plan.volumes:
        remarks += [f"disk_gb: the model's weights may need {weights:.0f} GB, or a volume"]
    has_files = plan.volumes or plan.settings.get("FILES_PATH", "").strip()
    if has_files and not plan.settings.get("BATCH_API_KEY", "").strip():
        remarks += [NO_BATCH_KEY]
    if len({*(plan.volumes or [])}) > 1:
        remarks += [SEVERAL_VOLUMES]
    if not model:
        remarks += ["settings: MODEL_NAME is not set, so the image must have a model in it"]
    return plan.model_copy(update={"gpu_pools": pools}), remarks


def read_plan_file(path: Path) -> dict[str, Any]:
    """Read a plan's fields from a YAML file; errors quote nothing of its content."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise PlanError([f"{path}: it can't be read: {reason}"]) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        position = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise PlanError([f"{path}{position}: not valid YAML"]) from None
    if not isinstance(content, dict):
        raise PlanError([f"{path}: not a mapping of a plan's fields"])
    return {str(key): value for key, value in content.items()}


def estimate_weights_gb(model: str, quantization: str) -> float | None:
    """Estimate the size of a model's weights in GB; None if the model's name doesn't show it."""
    if (size := _PARAMETER_COUNT.search(model)) is None:
        return None
    billions = float(size[1]) / (1000 if size[2] in "mM" else 1)
    is_quantized = quantization.lower().startswith(_QUANTIZED_PREFIXES)
    return billions * (_GB_PER_BILLION_QUANTIZED if is_quantized else _GB_PER_BILLION)


def smallest_gpu_pools(gb: float) -> list[str]:
    """Return the pools of the smallest GPUs with at least this many GB; an empty list if none."""
    return next((names for size, names in _POOLS_BY_GB.items() if size >= gb), [])


def _describe_field_error(error: Any) -> str:
    field = ".".join(map(str, error["loc"]))
    if error["type"] == "extra_forbidden":
        similar = find_similar_name(field, EndpointPlan.model_fields)
        names = ", ".join(EndpointPlan.model_fields)
        hint = f"did you mean {similar}?" if similar else f"its fields are {names}"
        return f"{field}: a plan has no such field; {hint}"
    if error["type"] == "missing":
        return f"{field}: it is required, as --{field} or in the file"
    if error["type"] == "string_pattern_mismatch":
        return f"{field}: {error['input']}: replace the placeholder, and remove spaces"
    advice = "; write a string, in quotes" if error["type"] == "string_type" else ""
    return f"{field}: {error['msg']}{advice}"


def _find_mistakes(plan: EndpointPlan, pools: list[str]) -> Iterator[str]:
    if plan.workers_min > plan.workers_max:
        yield "workers_min: more than workers_max"
    if plan.request_count is not None:
        for name in sorted(plan.model_fields_set & {"queue_delay_s", "idle_timeout_s"}):
            yield f"{name}: can't be combined with request_count"
    if not pools:
        yield f"gpu_pools: which GPUs hold the model? {_POOLS_TEXT}"
    for name in pools:
        if name not in POOLS and name.upper() in POOLS:
            yield f"gpu_pools: {name} is written {name.upper()}"
        elif owners := _pools_with_gpu(name):
            yield f"gpu_pools: {name} is a GPU: name its pool, {' or '.join(owners)}"
    for name, value in sorted(plan.settings.items()):
        if contains_secret(name, value):
            yield (
                f"settings.{name}: a secret does not belong in a plan: save it as a secret in "
                f"the console, and set {name}={{{{ RUNPOD_SECRET_<its name> }}}}"
            )
    if contains_secret("args", plan.args or ""):
        yield "args: a secret does not belong in a plan: pass it as a setting"


def _pools_with_gpu(name: str) -> list[str]:
    """Return the pools that contain a GPU; an abbreviated name such as H100 is sufficient."""
    wanted, found = _GPU_WORDS.sub("", name.upper()), list[str]()
    for pool_id, pool in POOLS.items():
        names = (_GPU_WORDS.sub("", gpu.upper()) for gpu in pool["gpus"])
        if wanted and any(gpu.startswith(wanted) for gpu in names):
            found.append(pool_id)
    return found
