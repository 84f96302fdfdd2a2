"""What an endpoint shall be: read from flags or a file, checked, and written as a request."""

import difflib
import json
import re
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from llm_worker_client.deploy.errors import PlanError
from llm_worker_client.deploy.settings import LISTING, is_secret

# The platform's pools of GPUs: GB of each GPU of a pool.
POOLS: dict[str, int] = json.loads(
    resources.files(__package__).joinpath("pools.json").read_text(encoding="utf-8")
)
_BY_SIZE = {
    gb: [name for name, size in POOLS.items() if size == gb] for gb in sorted({*POOLS.values()})
}
_ALL_POOLS = ", ".join(f"{gb} GB: {' '.join(names)}" for gb, names in _BY_SIZE.items())

# The size in a model's name, such as 7b.
_PARAMETERS = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)([bm])(?![a-z])", re.IGNORECASE)
# GB for a billion parameters in 16 bits, or quantized to 4.
_GB, _GB_QUANTIZED = 2.0, 0.75
# How much more a GPU needs at least, for the KV cache.
ON_GPU = 1.2
_QUANTIZED = ("awq", "gptq")
# The CUDA of a variant of the image, at the end of its tag: 0.1.0-vllm0.32.0-cu129.
_CUDA = re.compile(r"-cu(\d+)(\d)$")
_TIMEOUT = "EXECUTION_TIMEOUT_S"
# Of a container's disk, for caches and what a download needs beside.
_ROOM_GB = 5
# The platform gives up a start after 420 s, too few where a model is downloaded in it.
_INIT_TIMEOUT = {"RUNPOD_INIT_TIMEOUT": "1200"}
_FLASHBOOT = {"off": "OFF", "on": "FLASHBOOT", "priority": "PRIORITY_FLASHBOOT"}


def _text(value: object) -> object:
    """Write a value of YAML as a variable holds it."""
    if isinstance(value, bool):
        return "1" if value else "0"
    return str(value) if isinstance(value, int | float) else value


def _switch(value: object) -> object:
    """Take YAML's ``on`` and ``off``, which are booleans, for what they are written as."""
    return ("on" if value else "off") if isinstance(value, bool) else value


Text = Annotated[str, Field(min_length=1)]
Setting = Annotated[str, BeforeValidator(_text)]
Cuda = Annotated[str, BeforeValidator(_text), Field(pattern=r"^\d+\.\d+$")]


class Plan(BaseModel):
    """An endpoint as it shall be, whose defaults suit this worker.

    What is None here, and has no default, is left as it is where the endpoint exists.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    name: Text = Field(description="the endpoint's name, by which it is found again")
    image: Text = Field(description="the worker's image, with its tag")
    settings: dict[Text, Setting] = Field(default={}, description="NAME=VALUE, of the worker")
    gpu_pools: list[Text] | None = Field(
        None, min_length=1, description=f"by default as large as the model ({_ALL_POOLS})"
    )
    gpu_count: int = Field(1, ge=1, description="GPUs of a worker")
    exclude_gpus: list[Text] = Field(default=[], description="types of GPUs out of the pools")
    min_cuda: Cuda | None = Field(None, description="of hosts; by default what the image needs")
    disk_gb: int = Field(60, ge=1, description="of a container")
    volumes: list[Text] | None = Field(None, description="ids of network volumes")
    data_centers: list[Text] | None = Field(None, description="ids of data centers")
    registry: Text | None = Field(None, description="id of a private registry's credentials")
    args: str | None = Field(None, description="the container's start command")
    workers_min: int = Field(0, ge=0, description="workers that are always up, and paid for")
    workers_max: int = Field(3, ge=1, description="bounds the cost")
    idle_timeout_s: int = Field(
        60, ge=1, le=3600, description="how long a worker waits for jobs, unless by requests"
    )
    queue_delay_s: float | None = Field(
        None, ge=0.5, description="a worker more where jobs wait for longer (the default, 4)"
    )
    request_count: int | None = Field(
        None, ge=1, description="instead: a worker for every so many jobs"
    )
    timeout_s: int = Field(600, ge=1, description="of a job")
    flashboot: Annotated[Literal["off", "on", "priority"], BeforeValidator(_switch)] = Field(
        "on", description="whether stopped workers come back fast"
    )

    def request(self) -> dict[str, Any]:
        """Build the body that creates the endpoint."""
        body: dict[str, Any] = {
            "name": self.name,
            "type": "QUEUE",
            "image": self.image,
            "env": self._env(),
            "gpu": self._gpu(),
            "disk": self.disk_gb,
            "workers": {"min": self.workers_min, "max": self.workers_max},
            "timeout": self.timeout_s * 1000,
            "flashboot": _FLASHBOOT[self.flashboot],
        }
        if self.request_count is not None:
            # The platform refuses an idle timeout beside it.
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

    def _env(self) -> dict[str, str]:
        env = {**LISTING.proposed, **_INIT_TIMEOUT, **self.settings}
        if self.timeout_s != 600:
            # A batch has to know when its job ends.
            env.setdefault(_TIMEOUT, str(self.timeout_s))
        return env

    def _gpu(self) -> dict[str, Any]:
        gpu: dict[str, Any] = {"pools": self.gpu_pools, "count": self.gpu_count}
        if self.exclude_gpus:
            gpu["excludedTypes"] = self.exclude_gpus
        variant = _CUDA.search(self.image)
        built = f"{variant[1]}.{variant[2]}" if variant else LISTING.cuda
        return gpu | {"minCudaVersion": self.min_cuda or built}


def read_plan(fields: dict[str, Any], *, unknown_settings: bool = False) -> tuple[Plan, list[str]]:
    """Check a plan.

    Args:
        fields: as they were read.
        unknown_settings: settings may have names that look wrong.

    Returns:
        The plan, and remarks about it.

    Raises:
        PlanError: with all its mistakes, none of which quotes a value.
    """
    try:
        plan = Plan.model_validate(fields)
    except ValidationError as wrong:
        raise PlanError([_mistake(error) for error in wrong.errors()]) from None
    model = [plan.settings.get(name, "").strip() for name in ("MODEL_NAME", "QUANTIZATION")]
    weights = weights_gb(*model)
    chosen = plan.gpu_pools
    if chosen is None:
        chosen = [] if weights is None else pools_of(weights * ON_GPU / plan.gpu_count)
    mistakes = [*_contradictions(plan, chosen), *_secrets(plan)]
    doubts = {
        name: LISTING.doubt(name) or LISTING.wrong(name, value)
        for name, value in sorted(plan.settings.items())
    }
    if not unknown_settings:
        mistakes += [f"settings: {doubt}" for doubt in doubts.values() if doubt]
    if mistakes:
        raise PlanError(mistakes)
    foreign = [name for name, doubt in doubts.items() if not doubt and name not in LISTING.known]
    remarks = [doubt for doubt in doubts.values() if doubt]
    remarks += [f"{name} is no setting of the worker: passed on" for name in foreign]
    remarks += [f"gpu_pools: {name} is not known here" for name in chosen if name not in POOLS]
    if plan.gpu_pools is None:
        remarks += [f"gpu_pools: {' '.join(chosen)}, by the size in the model's name"]
    if weights and weights > plan.disk_gb - _ROOM_GB and not plan.volumes:
        remarks += [f"disk_gb: the model's weights may need {weights:.0f} GB, or a volume"]
    if not model[0]:
        remarks += ["settings: MODEL_NAME is not set, so the image must have a model in it"]
    return plan.model_copy(update={"gpu_pools": chosen}), remarks


def read_file(path: Path) -> dict[str, Any]:
    """Read a plan's fields from a YAML file.

    Raises:
        PlanError: it can't be read; the message quotes nothing of its content.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as why:
        reason = getattr(why, "strerror", None) or "it is no text"
        raise PlanError([f"{path}: it can't be read: {reason}"]) from None
    except yaml.YAMLError as why:
        mark = getattr(why, "problem_mark", None)
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise PlanError([f"{path}{where}: no YAML"]) from None
    if not isinstance(content, dict):
        raise PlanError([f"{path}: not the fields of a plan"])
    return {str(key): value for key, value in content.items()}


def weights_gb(model: str, quantization: str) -> float | None:
    """Return the GB of a model's weights; None if its name doesn't say its size."""
    if (size := _PARAMETERS.search(model)) is None:
        return None
    billions = float(size[1]) / (1000 if size[2] in "mM" else 1)
    return billions * (_GB_QUANTIZED if quantization.lower().startswith(_QUANTIZED) else _GB)


def pools_of(gb: float) -> list[str]:
    """Return the pools of the smallest GPUs that hold so much; none if there are no such GPUs."""
    return next((names for size, names in _BY_SIZE.items() if size >= gb), [])


def _mistake(error: Any) -> str:
    where = ".".join(map(str, error["loc"]))
    if error["type"] == "extra_forbidden":
        near = difflib.get_close_matches(where, Plan.model_fields, n=1)
        meant = f"; did you mean {near[0]}?" if near else f": {', '.join(Plan.model_fields)}"
        return f"{where}: a plan has no such field{meant}"
    if error["type"] == "missing":
        return f"{where}: it is required, as --{where} or in the file"
    advice = "; write a text, in quotes" if error["type"] == "string_type" else ""
    return f"{where}: {error['msg']}{advice}"


def _contradictions(plan: Plan, pools: list[str]) -> Iterator[str]:
    if plan.workers_min > plan.workers_max:
        yield "workers_min: more than workers_max"
    if plan.request_count is not None:
        for name in sorted(plan.model_fields_set & {"queue_delay_s", "idle_timeout_s"}):
            yield f"{name}: not together with request_count"
    if not pools:
        yield f"gpu_pools: which GPUs hold the model? {_ALL_POOLS}"
    for name in pools:
        if name not in POOLS and name.upper() in POOLS:
            yield f"gpu_pools: {name} is written {name.upper()}"


def _secrets(plan: Plan) -> Iterator[str]:
    for name, value in sorted(plan.settings.items()):
        if is_secret(name, value):
            yield (
                f"settings.{name}: a secret does not belong in a plan: save it among the console's "
                f"secrets, and give {name}={{{{ RUNPOD_SECRET_<its name> }}}}"
            )
    if is_secret("args", plan.args or ""):
        yield "args: a secret does not belong in a plan: give it as a setting"
