"""Speed, starts and failures of the engine."""

from table.row import LIFE, SPEED, Row, rows

SPEED_ROWS = rows(
    SPEED,
    Row(
        "MAX_CONCURRENCY",
        "Concurrent jobs",
        "Maximum jobs that a worker takes concurrently; those that the engine doesn't run yet wait "
        "in it. `auto`: as many as the engine runs, and at most 32 more.",
        form=True,
    ),
    Row(
        "MAX_NUM_SEQS",
        "Concurrent sequences",
        "Maximum sequences that the engine computes concurrently; unset, vLLM chooses it for the "
        "GPU.",
        form=True,
    ),
    Row(
        "MAX_NUM_BATCHED_TOKENS",
        "Tokens per step",
        "Maximum tokens that one step of the engine computes; unset, vLLM chooses it for the GPU.",
    ),
    Row(
        "MAX_NUM_QUEUED_REQS",
        "Requests in the engine",
        "Maximum requests in the engine, waiting and running; further ones fail with a retryable "
        "503.",
    ),
    Row(
        "ENABLE_PREFIX_CACHING",
        "Prefix caching",
        "Reuse cached KV blocks for shared prompt prefixes; unset, on if the model allows it.",
        form=True,
        advanced=True,
    ),
    Row(
        "ENABLE_CHUNKED_PREFILL",
        "Chunked prefill",
        "Compute long prompts in parts, between the tokens of other requests; unset, on if the "
        "model allows it.",
    ),
    Row(
        "SPECULATIVE_CONFIG",
        "Speculative decoding",
        "Speculative decoding: the method that drafts tokens for the model to verify, and its "
        "options.",
        form=True,
        advanced=True,
    ),
    Row(
        "PERFORMANCE_MODE",
        "Performance mode",
        "Optimize for the latency of a few requests (`interactivity`), or for many requests "
        "(`throughput`).",
    ),
    Row(
        "OPTIMIZATION_LEVEL",
        "Optimization level",
        "From 0, with the fastest start, to 3, with the fastest computation.",
    ),
    Row(
        "SCHEDULING_POLICY",
        "Scheduling policy",
        "Order of requests: by arrival (`fcfs`), or by the lowest `priority`.",
    ),
    Row(
        "ASYNC_SCHEDULING",
        "Asynchronous scheduling",
        "Prepare the next step while the current one is computed; unset, on unless something "
        "prevents it.",
    ),
    Row(
        "DATA_PARALLEL_SIZE",
        "Data parallelism",
        "Number of copies of the model, each on its own GPUs.",
    ),
    Row(
        "ENABLE_EXPERT_PARALLEL",
        "Expert parallelism",
        "Distribute whole experts over the GPUs, instead of splitting each of them. For "
        "mixture-of-experts models only; others don't start with it.",
    ),
    Row(
        "ATTENTION_BACKEND",
        "Attention backend",
        "Implementation of attention; unset, vLLM's first one that supports the GPU and the model.",
    ),
    Row(
        "COMPILATION_CONFIG", "Compilation", "How vLLM compiles the model and captures CUDA graphs."
    ),
    Row(
        "DISTRIBUTED_EXECUTOR_BACKEND",
        "Executor",
        "How the processes of several GPUs are run; unset, vLLM chooses.",
    ),
    Row(
        "DISABLE_CUSTOM_ALL_REDUCE",
        "No custom all-reduce",
        "Exchange sums between GPUs only through NCCL, without vLLM's own kernel.",
        form=True,
        advanced=True,
    ),
    Row(
        "NUMA_BIND_NODES",
        "NUMA nodes",
        "NUMA nodes to which the GPUs' processes are bound, one for each GPU.",
    ),
    Row(
        "RENDERER_NUM_WORKERS",
        "Rendering threads",
        "Threads that render templates and tokenize prompts; unset, 2, or 1 for multimodal pooling "
        "models and without a tokenizer. With several threads, one always stays free of long "
        "texts.",
    ),
    Row("RAY_WORKERS_USE_NSIGHT", "Nsight", "Profile Ray's processes with Nsight."),
)
LIFE_ROWS = rows(
    LIFE,
    Row(
        "FAST_LOAD",
        "Fast loader of weights",
        "On GPUs, load weights with the fastest loader that is installed with vLLM and that the "
        "disk allows: `instanttensor`, `fastsafetensors` or `runai_streamer`; if startup fails "
        "with it, vLLM's default loader is tried.",
    ),
    Row(
        "COMPILE_CACHE",
        "Compile cache",
        "Store vLLM's compiled code in `compile-cache` on the network volume, so that later "
        "workers don't compile it again.",
    ),
    Row(
        "ENFORCE_EAGER",
        "Eager mode",
        "No compilation and no CUDA graphs: startup is faster, and tokens are slower.",
        form=True,
    ),
    Row(
        "CUDAGRAPH_CAPTURE_SIZES",
        "CUDA graph sizes",
        "Batch sizes for which CUDA graphs are captured; fewer sizes shorten startup.",
    ),
    Row(
        "MAX_PARALLEL_LOADING_WORKERS",
        "Parallel loading",
        "Number of GPUs whose weights are loaded concurrently; vLLM currently ignores it.",
    ),
    Row(
        "ANSWER_FAILED_START",
        "Answer a failed start",
        "A worker that can't start fails the waiting jobs with the reason, if any other worker "
        "would also fail, or after three starts that failed in the same way; `0`: it exits "
        "immediately, and the jobs stay in the queue.",
    ),
    Row(
        "MAX_ENGINE_RESTARTS",
        "Engine restarts",
        "Maximum restarts of a dead or hanging engine within ten minutes; after that, the worker "
        "exits, so that the platform replaces it.",
    ),
    Row(
        "ENGINE_HANG_S",
        "Engine hang timeout (s)",
        "Seconds without progress on running requests after which the engine is restarted; long "
        "prompts get more time; `0`: never.",
    ),
    Row(
        "SHUTDOWN_GRACE_S",
        "Shutdown grace period (s)",
        "Seconds that running jobs have to end when the platform stops the worker; the others fail "
        "as retryable.",
    ),
)
