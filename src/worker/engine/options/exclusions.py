"""Options of vLLM's parser that the worker refuses or that have no effect in a worker."""

from worker.settings.names import FOREIGN_OPTIONS

_NO_SOCKET = "vLLM's server runs inside the worker, without a socket of its own"

# Options that make no sense in a worker, which ignores them or refuses them in VLLM_EXTRA_ARGS.
UNSUPPORTED_OPTIONS = dict.fromkeys(
    """
    api_server_count grpc grpc_port headless middleware root_path ssl_ca_certs ssl_cert_reqs
    ssl_certfile ssl_ciphers ssl_keyfile enable_ssl_refresh uds
    """.split(),
    _NO_SOCKET,
) | dict.fromkeys(
    """
    data_parallel_address data_parallel_external_lb data_parallel_hybrid_lb data_parallel_rank
    data_parallel_rpc_port data_parallel_start_rank data_parallel_supervisor_port master_addr
    master_port nnodes node_rank
    """.split(),
    "a worker runs on one machine",
)
# All options of vLLM that settings can't set. Two of them are secrets that vLLM must not receive:
# HF_TOKEN is passed to the hub's library in the environment, and SERVE_API_KEY replaces api_key.
EXCLUDED_OPTIONS = (
    {name.lower() for name in FOREIGN_OPTIONS}
    | UNSUPPORTED_OPTIONS.keys()
    | {"api_key", "hf_token"}
)

# Options that vLLM's parser accepts but that have no effect in a worker or at all, with reasons.
INEFFECTIVE_OPTIONS = dict.fromkeys(
    """
    aggregate_engine_logging allow_credentials allowed_headers allowed_methods
    disable_access_log_for_endpoints disable_fastapi_docs disable_uvicorn_access_log
    dp_supervisor_probe_failure_threshold dp_supervisor_probe_interval_s
    dp_supervisor_probe_timeout_s data_parallel_multi_port_external_lb enable_offline_docs
    h11_max_header_count h11_max_incomplete_event_size log_error_stack shutdown_timeout
    uvicorn_log_level
    """.split(),
    _NO_SOCKET,
) | dict.fromkeys(
    """
    collect_detailed_traces disable_cascade_attn max_parallel_loading_workers
    show_hidden_metrics_for_version
    """.split(),
    "vLLM itself ignores it",
)

# Options that have no effect unless another option is set, with that option.
PREREQUISITES = {
    "FULLY_SHARDED_LORAS": "ENABLE_LORA",
    "LORA_DTYPE": "ENABLE_LORA",
    "MAX_CPU_LORAS": "ENABLE_LORA",
    "MAX_LORAS": "ENABLE_LORA",
    "MAX_LORA_RANK": "ENABLE_LORA",
    "TOOL_CALL_PARSER": "ENABLE_AUTO_TOOL_CHOICE",
}
