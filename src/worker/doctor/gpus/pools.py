"""The platform's GPUs, and the pools in which endpoints select them.

``make listings`` generates the hub's listing and the client's table (``deploy/pools.json``) from
``POOLS``. The pools and types come from https://docs.runpod.io/references/gpu-types; those that are
missing there, from the documentation of RunPod's Flash library.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class GpuType:
    """A type of GPU.

    Attributes:
        id: The platform's id.
        name: The common name.
        gib: Minimum GiB of memory that the driver offers to a process; less than the nominal size.
        capability: CUDA's compute capability, times ten: 89 for 8.9.
    """

    id: str
    name: str
    gib: float
    capability: int


@dataclass(frozen=True)
class GpuPool:
    """Types of GPUs that an endpoint selects together; ``gb`` is the pool's nominal gigabytes."""

    id: str
    gb: int
    types: tuple[GpuType, ...]


_AMPERE_16 = (
    GpuType("NVIDIA RTX A4000", "RTX A4000", 15.6, 86),
    GpuType("NVIDIA RTX A4500", "RTX A4500", 19.6, 86),
    GpuType("NVIDIA RTX 4000 Ada Generation", "RTX 4000 Ada", 19.5, 89),
    GpuType("NVIDIA RTX 2000 Ada Generation", "RTX 2000 Ada", 15.6, 89),
)
_AMPERE_24 = (
    GpuType("NVIDIA L4", "L4", 22.0, 89),
    GpuType("NVIDIA RTX A5000", "RTX A5000", 23.5, 86),
    GpuType("NVIDIA GeForce RTX 3090", "RTX 3090", 23.5, 86),
)
_AMPERE_48 = (
    GpuType("NVIDIA RTX A6000", "RTX A6000", 47.4, 86),
    GpuType("NVIDIA A40", "A40", 44.3, 86),
)
_ADA_48_PRO = (
    GpuType("NVIDIA L40", "L40", 44.3, 89),
    GpuType("NVIDIA L40S", "L40S", 44.3, 89),
    GpuType("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada", 47.4, 89),
)
_AMPERE_80 = (
    GpuType("NVIDIA A100 80GB PCIe", "A100 PCIe", 79.1, 80),
    GpuType("NVIDIA A100-SXM4-80GB", "A100 SXM", 79.1, 80),
)
_ADA_80_PRO = (
    GpuType("NVIDIA H100 PCIe", "H100 PCIe", 79.1, 90),
    GpuType("NVIDIA H100 80GB HBM3", "H100 SXM", 79.1, 90),
    GpuType("NVIDIA H100 NVL", "H100 NVL", 93.0, 90),
)
_BLACKWELL_96 = (
    GpuType("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX PRO 6000", 94.9, 120),
    GpuType("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "RTX PRO 6000 WK", 94.9, 120),
    GpuType(
        "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "RTX PRO 6000 MaxQ", 94.9, 120
    ),
)

# Ordered by the GPUs' memory.
POOLS = (
    GpuPool("AMPERE_16", 16, _AMPERE_16),
    GpuPool("AMPERE_24", 24, _AMPERE_24),
    GpuPool("ADA_24", 24, (GpuType("NVIDIA GeForce RTX 4090", "RTX 4090", 23.5, 89),)),
    GpuPool("ADA_32_PRO", 32, (GpuType("NVIDIA GeForce RTX 5090", "RTX 5090", 31.3, 120),)),
    GpuPool("AMPERE_48", 48, _AMPERE_48),
    GpuPool("ADA_48_PRO", 48, _ADA_48_PRO),
    GpuPool("AMPERE_80", 80, _AMPERE_80),
    GpuPool("ADA_80_PRO", 80, _ADA_80_PRO),
    GpuPool("BLACKWELL_96", 96, _BLACKWELL_96),
    GpuPool("HOPPER_141", 141, (GpuType("NVIDIA H200", "H200", 139.7, 90),)),
    GpuPool("BLACKWELL_180", 180, (GpuType("NVIDIA B200", "B200", 178.3, 100),)),
)
