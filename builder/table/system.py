"""Options of vLLM about the machine: its GPUs, its memory, and what they compute at once."""

from table.row import SYSTEM, Row

SYSTEM_ROWS = (
    Row(
        "GPU_MEMORY_UTILIZATION",
        SYSTEM,
        "GPU memory",
        "Share of each GPU's memory, from 0 to 1, for weights and KV cache; unset, it is 0.85 "
        "with an embedding model, which then has 0.1.",
        form=True,
    ),
    Row(
        "TENSOR_PARALLEL_SIZE",
        SYSTEM,
        "Tensor parallelism",
        "GPUs that every layer is split across; unset, all that the worker has, as far as the "
        "model's attention heads divide.",
        form=True,
    ),
    Row(
        "PIPELINE_PARALLEL_SIZE",
        SYSTEM,
        "Pipeline parallelism",
        "Groups of GPUs that the layers are shared out among.",
        form=True,
        advanced=True,
    ),
    Row(
        "DATA_PARALLEL_SIZE",
        SYSTEM,
        "Data parallelism",
        "Copies of the model, each on GPUs of its own.",
    ),
    Row(
        "ENABLE_EXPERT_PARALLEL",
        SYSTEM,
        "Expert parallelism",
        "The experts of a mixture-of-experts model are spread over the GPUs whole, not split.",
    ),
    Row(
        "DISTRIBUTED_EXECUTOR_BACKEND",
        SYSTEM,
        "Executor",
        "What runs the processes of several GPUs; unset, vLLM decides.",
    ),
    Row(
        "MAX_NUM_SEQS",
        SYSTEM,
        "Sequences at once",
        "Most sequences that the engine computes at once; unset, vLLM decides by the GPU.",
        form=True,
    ),
    Row(
        "MAX_NUM_BATCHED_TOKENS",
        SYSTEM,
        "Tokens a step",
        "Most tokens that one step of the engine computes; unset, vLLM decides by the GPU.",
    ),
    Row(
        "MAX_NUM_QUEUED_REQS",
        SYSTEM,
        "Requests in the engine",
        "Most requests that wait or run in the engine; further ones fail with a retryable 503.",
    ),
    Row(
        "ENABLE_PREFIX_CACHING",
        SYSTEM,
        "Prefix caching",
        "What the KV cache holds of a prompt's beginning is used again by requests that share it; "
        "unset, it is on where the model allows it.",
        form=True,
        advanced=True,
    ),
    Row(
        "ENABLE_CHUNKED_PREFILL",
        SYSTEM,
        "Chunked prefill",
        "Long prompts are computed in parts, between the tokens of other requests; unset, where "
        "the model allows it.",
    ),
    Row(
        "BLOCK_SIZE",
        SYSTEM,
        "Block size",
        "Tokens in a block of the KV cache; unset, vLLM decides by the attention backend.",
        form=True,
        advanced=True,
    ),
    Row(
        "ENFORCE_EAGER",
        SYSTEM,
        "Eager mode",
        "No compilation and no CUDA graphs: a faster start, and slower tokens.",
        form=True,
    ),
    Row(
        "CPU_OFFLOAD_GB",
        SYSTEM,
        "Weights in RAM (GiB)",
        "GiB of weights, for each GPU, that stay in the machine's memory.",
    ),
    Row(
        "KV_CACHE_MEMORY_BYTES",
        SYSTEM,
        "KV cache (bytes)",
        "Bytes of each GPU for the KV cache, in place of what `GPU_MEMORY_UTILIZATION` leaves.",
    ),
    Row(
        "KV_OFFLOADING_SIZE",
        SYSTEM,
        "KV cache in RAM (GiB)",
        "GiB of the machine's memory, over all GPUs, for blocks that the KV cache has no room for.",
    ),
    Row(
        "MAX_PARALLEL_LOADING_WORKERS",
        SYSTEM,
        "Loading in batches",
        "How many GPUs' weights are loaded at the same time; vLLM ignores it at present.",
    ),
    Row(
        "NUMA_BIND_NODES",
        SYSTEM,
        "NUMA nodes",
        "Numbers of the NUMA nodes that the processes of the GPUs are bound to, one for each GPU.",
    ),
    Row(
        "NUM_GPU_BLOCKS_OVERRIDE",
        SYSTEM,
        "Blocks of the KV cache",
        "Number of blocks in the KV cache, in place of what fits.",
    ),
    Row(
        "DISABLE_CUSTOM_ALL_REDUCE",
        SYSTEM,
        "No custom all-reduce",
        "GPUs exchange sums through NCCL alone, without vLLM's own kernel.",
        form=True,
        advanced=True,
    ),
    Row(
        "ATTENTION_BACKEND",
        SYSTEM,
        "Attention backend",
        "Implementation of attention; unset, the first of vLLM's that suits GPU and model.",
    ),
    Row(
        "OPTIMIZATION_LEVEL",
        SYSTEM,
        "Optimization level",
        "From 0, which starts fastest, to 3, which computes fastest.",
    ),
    Row(
        "PERFORMANCE_MODE",
        SYSTEM,
        "Performance mode",
        "What is tuned for: few requests answered soon (`interactivity`), or many (`throughput`).",
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
        "Batch sizes that CUDA graphs are captured for; fewer sizes shorten the start.",
    ),
    Row(
        "ASYNC_SCHEDULING",
        SYSTEM,
        "Asynchronous scheduling",
        "The next step is prepared while this one is computed; unset, where nothing forbids it.",
    ),
    Row(
        "SCHEDULING_POLICY",
        SYSTEM,
        "Scheduling policy",
        "Which request is next: the one that came first, or the one with the lowest `priority`.",
    ),
    Row(
        "STREAM_INTERVAL",
        SYSTEM,
        "Tokens an output",
        "Tokens that the engine hands over at once; chunks are made of them.",
    ),
    Row(
        "RAY_WORKERS_USE_NSIGHT",
        SYSTEM,
        "Nsight",
        "Processes that Ray runs are profiled by Nsight.",
    ),
)
