"""Options of vLLM about the machine: its GPUs, its memory, and concurrent computation."""

from table.row import SYSTEM, Row

SYSTEM_ROWS = (
    Row(
        "GPU_MEMORY_UTILIZATION",
        SYSTEM,
        "GPU memory",
        "Share of each GPU's memory, from 0 to 1, for weights and KV cache; unset, 0.85 with an "
        "embedding model, which then has 0.1.",
        form=True,
    ),
    Row(
        "TENSOR_PARALLEL_SIZE",
        SYSTEM,
        "Tensor parallelism",
        "Number of GPUs across which every layer is split; unset, the largest number of the "
        "worker's GPUs that divides the model's attention heads.",
        form=True,
    ),
    Row(
        "PIPELINE_PARALLEL_SIZE",
        SYSTEM,
        "Pipeline parallelism",
        "Number of groups of GPUs among which the layers are distributed.",
        form=True,
        advanced=True,
    ),
    Row(
        "DATA_PARALLEL_SIZE",
        SYSTEM,
        "Data parallelism",
        "Number of copies of the model, each on its own GPUs.",
    ),
    Row(
        "ENABLE_EXPERT_PARALLEL",
        SYSTEM,
        "Expert parallelism",
        "Distribute whole experts of a mixture-of-experts model over the GPUs, instead of "
        "splitting each of them.",
    ),
    Row(
        "DISTRIBUTED_EXECUTOR_BACKEND",
        SYSTEM,
        "Executor",
        "How the processes of several GPUs are run; unset, vLLM decides.",
    ),
    Row(
        "MAX_NUM_SEQS",
        SYSTEM,
        "Concurrent sequences",
        "Maximum number of sequences that the engine computes concurrently; unset, vLLM decides by"
        " the GPU.",
        form=True,
    ),
    Row(
        "MAX_NUM_BATCHED_TOKENS",
        SYSTEM,
        "Tokens per step",
        "Maximum number of tokens that one step of the engine computes; unset, vLLM decides by the"
        " GPU.",
    ),
    Row(
        "MAX_NUM_QUEUED_REQS",
        SYSTEM,
        "Requests in the engine",
        "Maximum number of waiting and running requests in the engine; others fail with a "
        "retryable 503.",
    ),
    Row(
        "ENABLE_PREFIX_CACHING",
        SYSTEM,
        "Prefix caching",
        "Reuse the KV cache of a prompt's beginning for requests with the same beginning; unset, "
        "on if the model allows it.",
        form=True,
        advanced=True,
    ),
    Row(
        "ENABLE_CHUNKED_PREFILL",
        SYSTEM,
        "Chunked prefill",
        "Compute long prompts in parts, between the tokens of other requests; unset, on if the "
        "model allows it.",
    ),
    Row(
        "BLOCK_SIZE",
        SYSTEM,
        "Block size",
        "Number of tokens in a block of the KV cache; unset, vLLM decides by the attention "
        "backend.",
        form=True,
        advanced=True,
    ),
    Row(
        "ENFORCE_EAGER",
        SYSTEM,
        "Eager mode",
        "No compilation and no CUDA graphs: startup is faster, and tokens are slower.",
        form=True,
    ),
    Row(
        "CPU_OFFLOAD_GB",
        SYSTEM,
        "Weights in RAM (GiB)",
        "GiB of weights per GPU that stay in the machine's memory.",
    ),
    Row(
        "KV_CACHE_MEMORY_BYTES",
        SYSTEM,
        "KV cache (bytes)",
        "Bytes per GPU for the KV cache, instead of the memory that `GPU_MEMORY_UTILIZATION` "
        "leaves.",
    ),
    Row(
        "KV_OFFLOADING_SIZE",
        SYSTEM,
        "KV cache in RAM (GiB)",
        "GiB of the machine's memory, for all GPUs together, for blocks that don't fit into the KV"
        " cache.",
    ),
    Row(
        "MAX_PARALLEL_LOADING_WORKERS",
        SYSTEM,
        "Parallel loading",
        "Number of GPUs whose weights are loaded concurrently; vLLM currently ignores it.",
    ),
    Row(
        "NUMA_BIND_NODES",
        SYSTEM,
        "NUMA nodes",
        "Numbers of the NUMA nodes to which the GPUs' processes are bound, one for each GPU.",
    ),
    Row(
        "NUM_GPU_BLOCKS_OVERRIDE",
        SYSTEM,
        "Blocks of the KV cache",
        "Number of blocks in the KV cache, instead of the number that fits.",
    ),
    Row(
        "DISABLE_CUSTOM_ALL_REDUCE",
        SYSTEM,
        "No custom all-reduce",
        "GPUs exchange sums only through NCCL, without vLLM's own kernel.",
        form=True,
        advanced=True,
    ),
    Row(
        "ATTENTION_BACKEND",
        SYSTEM,
        "Attention backend",
        "Implementation of attention; unset, vLLM's first one that supports the GPU and the model.",
    ),
    Row(
        "OPTIMIZATION_LEVEL",
        SYSTEM,
        "Optimization level",
        "From 0, with the fastest startup, to 3, with the fastest computation.",
    ),
    Row(
        "PERFORMANCE_MODE",
        SYSTEM,
        "Performance mode",
        "Optimization goal: a few requests with low latency (`interactivity`), or many requests "
        "(`throughput`).",
    ),
    Row(
        "COMPILATION_CONFIG",
        SYSTEM,
        "Compilation",
        "How the model is compiled and CUDA graphs are captured.",
    ),
    Row(
        "CUDAGRAPH_CAPTURE_SIZES",
        SYSTEM,
        "CUDA graph sizes",
        "Batch sizes for which CUDA graphs are captured; fewer sizes shorten startup.",
    ),
    Row(
        "ASYNC_SCHEDULING",
        SYSTEM,
        "Asynchronous scheduling",
        "Prepare the next step while the current one is computed; unset, on unless something "
        "prevents it.",
    ),
    Row(
        "SCHEDULING_POLICY",
        SYSTEM,
        "Scheduling policy",
        "Order of requests: by arrival (`fcfs`), or by the lowest `priority`.",
    ),
    Row(
        "STREAM_INTERVAL",
        SYSTEM,
        "Tokens per output",
        "Number of tokens in one output of the engine; chunks consist of such outputs.",
    ),
    Row(
        "RAY_WORKERS_USE_NSIGHT",
        SYSTEM,
        "Nsight",
        "Profile processes that Ray runs with Nsight.",
    ),
)
