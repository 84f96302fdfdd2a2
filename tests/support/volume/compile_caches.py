"""Workers that share a compile cache on a volume and have their own disks, without engines."""

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
OF_THE_MACHINE = "vllm/gpu_p2p_access_cache_for_0,1.json"


class Started:
    """A worker in its own container: it restores from the cache, and may then compile."""

    def __init__(self, shared: Path, folder: Path, key: str) -> None:
        self.local = folder
        self.cache = CompileCache(shared, folder)
        self.knew = self.cache.restore_models(key)
        self.found = self.cache.restore(key)

    def compile(self, *names: str, content: str | bytes = "compiled") -> "Started":
        for name in names:
            file = self.local / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content if isinstance(content, bytes) else content.encode())
        return self

    def healthy(self) -> "Started":
        self.cache.publish().join()
        return self

    def holds(self, name: str) -> bool:
        return (self.local / name).is_file()


@dataclass
class Workers:
    """The volume that workers share, and a folder for their disks."""

    volume: Path
    disks: Path

    def start(self, disk: int | str, key: str = KEY) -> Started:
        return Started(self.volume / compile_cache.SHARED, self.disks / str(disk), key)

    def archive(self, name: str = KEY) -> Path:
        return self.volume / compile_cache.SHARED / f"{name}{publishing.SUFFIX}"

    def published(self) -> list[str]:
        """Return what is on the volume, archives by the names that they were published by."""
        files = (self.volume / compile_cache.SHARED).glob("*")
        return sorted(path.name.removesuffix(publishing.SUFFIX) for path in files)
