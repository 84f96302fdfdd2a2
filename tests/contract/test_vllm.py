"""The names and behaviours of vLLM that the worker relies on: new releases fail here first."""

import inspect
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import vllm
from support.releases import of_the_pinned
from vllm.exceptions import VLLMValidationError

from worker.engine import options, translation
from worker.engine.generation import sampling
from worker.engine.locations import LOCATIONS, OPTIONAL, MovedName, find, optional
from worker.engine.options.excluded import DENIED
from worker.errors import EngineBusy, EngineDead, RefusedByEngine, WorkerError
from worker.settings.mistakes import SettingsError

ALIVE = SimpleNamespace(errored=False)


def test_the_installed_vllm_is_the_environments_own() -> None:
    # The environment of `make test-vllm` finds .venv's packages, too, after its own.
    assert Path(vllm.__file__).is_relative_to(sys.prefix)


@pytest.mark.parametrize("name", sorted(LOCATIONS.keys() - OPTIONAL))
def test_every_name_that_the_worker_uses_is_where_a_known_release_has_it(name: str) -> None:
    assert find(name) is not None


def test_a_name_that_moved_is_reported_with_the_file_to_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(LOCATIONS, "Gone", ("vllm.not_there", "vllm.config"))
    with pytest.raises(MovedName, match=r"vllm.not_there, vllm.config: mend .*locations.py"):
        find("Gone")


def test_a_name_that_a_release_lacks_is_none_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(LOCATIONS, "Gone", ("vllm.config",))
    monkeypatch.setitem(LOCATIONS, "VllmConfig", ("vllm.config",))
    assert (optional("Gone"), optional("VllmConfig")) == ((), (vllm.config.VllmConfig,))


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("build_app", ["args", "supported_tasks", "model_config"]),
        ("init_app_state", ["engine_client", "state", "args", "supported_tasks"]),
    ],
)
def test_the_app_is_built_from_what_the_worker_passes(name: str, parameters: list[str]) -> None:
    assert list(inspect.signature(find(name)).parameters)[: len(parameters)] == parameters


def vllm_errors(base: type[Exception]) -> list[type[Exception]]:
    return [base, *(leaf for child in base.__subclasses__() for leaf in vllm_errors(child))]


def test_every_error_of_vllms_has_a_translation_or_is_a_defect_on_purpose() -> None:
    defects = {"VLLMError", "VLLMServerError", "EngineGenerateError", "GenerationError"}
    known = tuple(class_ for class_, _ in translation.TABLE)
    ours = [class_ for class_ in vllm_errors(find("VLLMError")) if class_.__module__[:4] == "vllm"]
    assert {class_.__name__ for class_ in ours if not issubclass(class_, known)} <= defects
    assert len(ours) > len(defects)


def test_an_error_keeps_its_message_without_the_refused_value() -> None:
    error = VLLMValidationError("too long", parameter="prompt", value="a secret")
    translated = translation.translate(error)
    assert isinstance(translated, RefusedByEngine)
    assert (translated.status, translated.param, translated.message) == (400, "prompt", "too long")


def test_a_dead_engine_is_worth_a_retry() -> None:
    translated = translation.translate(find("EngineDeadError")())
    assert isinstance(translated, EngineDead)
    assert (translated.status, translated.retryable) == (503, True)


def test_a_defect_is_not_taken_for_a_refusal() -> None:
    with pytest.raises(KeyError), translation.translated(ALIVE):
        raise KeyError("defect")
    with pytest.raises(WorkerError), translation.translated(ALIVE):
        raise ValueError("refused")


@pytest.mark.parametrize("error", [KeyError("defect"), ValueError("refused"), EngineBusy("full")])
def test_every_failure_of_a_dead_engine_is_engine_dead(error: Exception) -> None:
    with pytest.raises(EngineDead), translation.translated(SimpleNamespace(errored=True)):
        raise error


@of_the_pinned
def test_every_name_kept_from_callers_and_operators_is_one_of_vllms() -> None:
    assert set(sampling.SamplingParams.__struct_fields__) >= sampling.INTERNAL
    dests = {action.dest for action in options.Options()._parser._actions}
    # The platform's.
    assert DENIED - dests == {"port_health"}


class TestOptions:
    """Variables in, vLLM's own arguments out."""

    def test_values_get_the_types_that_vllm_gives_them(self) -> None:
        environ = {
            "MODEL": "org/name",
            "MAX_MODEL_LEN": "1k",
            "MAX_NUM_BATCHED_TOKENS": "2K",
            "ENABLE_PREFIX_CACHING": "0",
            "DISABLE_SLIDING_WINDOW": "yes",
            "SERVED_MODEL_NAME": "first,second",
            "HF_OVERRIDES": '{"rope_theta": 1.0}',
            "CUDAGRAPH_CAPTURE_SIZES": "[1, 2]",
            "ENABLE_LORA": "1",
            "LORA_MODULES": '[{"name": "adapter", "path": "org/adapter"}]',
            "PATH": "/usr/bin",
        }
        arguments = options.Options().parse(environ).vllm
        assert arguments.model == "org/name"
        assert arguments.max_model_len == 1000
        assert arguments.max_num_batched_tokens == 2048
        assert arguments.enable_prefix_caching is False
        assert arguments.disable_sliding_window is True
        assert arguments.served_model_name == ["first", "second", "org/name"]
        assert arguments.hf_overrides == {"rope_theta": 1.0}
        assert arguments.cudagraph_capture_sizes == [1, 2]
        assert [(lora.name, lora.path) for lora in arguments.lora_modules] == [
            ("adapter", "org/adapter")
        ]

    @pytest.mark.parametrize(
        ("name", "value", "advice"),
        [
            ("MAX_MODEL_LEN", "abc", "a whole number, or one such as 16k"),
            ("GPU_MEMORY_UTILIZATION", "2", "a number, above 0, at most 1"),
            ("DTYPE", "float8", "One of auto, bfloat16"),
            ("ENFORCE_EAGER", "maybe", "0/1, true/false, yes/no, on/off"),
            ("HF_OVERRIDES", "{bad", "broken JSON"),
            ("BLOCK_SIZE", "-1", "a whole number, above 0"),
        ],
    )
    def test_a_wrong_value_is_refused_with_what_is_accepted(
        self, name: str, value: str, advice: str
    ) -> None:
        with pytest.raises(SettingsError) as refused:
            options.Options().parse({name: value})
        (mistake,) = refused.value.mistakes
        # JSON can hold keys to other services: its value is not repeated.
        assert (mistake.name, mistake.value) == (name, "{...}" if value[0] == "{" else value)
        assert advice in mistake.advice

    def test_all_mistakes_are_reported_at_once(self) -> None:
        with pytest.raises(SettingsError) as refused:
            options.Options().parse({"MAX_NUM_SEQS": "0", "SEED": "x", "MAX_MODEL_LEN": "8"})
        assert [mistake.name for mistake in refused.value.mistakes] == ["MAX_NUM_SEQS", "SEED"]

    def test_options_that_would_open_a_port_are_ignored(self) -> None:
        assert options.Options().parse({"PORT": "nonsense", "HOST": "x"}).vllm.port == 8000

    def test_a_machine_without_a_gpu_gets_defaults_that_run_anywhere(self) -> None:
        arguments = options.Options().parse({"MODEL": "org/name"}).vllm
        assert (arguments.dtype, arguments.enforce_eager) == ("float32", True)
        assert arguments.distributed_executor_backend == "uni"

    def test_the_operator_wins_over_the_defaults(self) -> None:
        arguments = options.Options().parse({"DTYPE": "float16", "TENSOR_PARALLEL_SIZE": "2"}).vllm
        assert arguments.dtype == "float16"
        assert arguments.distributed_executor_backend is None
