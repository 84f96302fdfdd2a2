"""Converts HTTP requests to jobs of the worker, and the yields of jobs to HTTP responses.

The gateway of a queue endpoint forwards the bodies of POST requests and little else. A job can
contain a whole request: its method, its path with the query string, and its body. Large files in
forms are stored in temporary files; otherwise this package does no I/O.
"""

from llm_worker_client.mapping.errors import Dialect, Refusal, refusal_from_report
from llm_worker_client.mapping.requests import (
    ForwardedRequest,
    JobRequest,
    OutputKind,
    Request,
    convert_request,
    find_dialect,
    is_upload,
    takes_body,
)

__all__ = [
    "Dialect",
    "ForwardedRequest",
    "JobRequest",
    "OutputKind",
    "Refusal",
    "Request",
    "convert_request",
    "find_dialect",
    "is_upload",
    "refusal_from_report",
    "takes_body",
]
