"""Workers without engines that share a compile cache on a volume and have their own disks."""

from dataclasses import dataclass
from pathlib import Path

from worker import compile_cache
from worker.compile_cache import CompileCache, publishing

KEY = "vllm-1_cpu_0123"
GRAPH = "vllm/torch_compile_cache/abc/rank_0_0/model"
INDUCTOR = "vllm/torch_compile_cache/abc/inductor_cache/k.so"
KERNEL = "triton/AB/kernel.cubin"
PLAN = "vllm/startup_plan/startup_plan_1.json"
MODEL = "vllm/modelinfos/llama.json"
MACHINE_FILE = "vllm/gpu_p2p_access_cache_for_0,1.json"


class CompilingWorker:
    """A worker in its own container that restores files from the shared cache, and may compile."""

    def __init__(self, shared: Path, folder: Path, key: str) -> None:
        self.local = folder
        self.cache = CompileCache(shared, folder)
        self.restored_models = self.cache.restore_model_info(key)
        self.restored = self.cache.restore_code(key)

    def compile(self, *names: str, content: str | bytes = "compiled") -> "CompilingWorker":
        for name in names:
            file = self.local / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content if isinstance(content, bytes) else content.encode())
        return self

    def publish(self) -> "CompilingWorker":
        self.cache.start_publishing().join()
        return self

    def has_file(self, name: str) -> bool:
        return (self.local / name).is_file()


@dataclass
class Workers:
    """A volume that workers share, and a folder for their disks."""

    volume: Path
    disks: Path

    def start(self, disk: int | str, key: str = KEY) -> CompilingWorker:
        return CompilingWorker(
            self.volume / compile_cache.SHARED_DIRECTORY, self.disks / str(disk), key
        )

    def archive(self, name: str = KEY) -> Path:
        return self.volume / compile_cache.SHARED_DIRECTORY / f"{name}{publishing.SUFFIX}"

    def shared_entries(self) -> list[str]:
        """Return the names of all files of the shared cache, without the suffix of archives."""
        files = (self.volume / compile_cache.SHARED_DIRECTORY).glob("*")
        return sorted(path.name.removesuffix(publishing.SUFFIX) for path in files)
