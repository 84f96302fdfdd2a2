"""LLM Engine's client API, for a deployed endpoint. Its users only change the import."""

from llm_worker_client.llm_engine import data_types as data_types
from llm_worker_client.llm_engine import errors as errors
from llm_worker_client.llm_engine.completion import Completion as Completion
from llm_worker_client.llm_engine.connection import configure as configure
from llm_worker_client.llm_engine.data_types import *  # noqa: F403 - llmengine exports them, too
from llm_worker_client.llm_engine.file import File as File
from llm_worker_client.llm_engine.fine_tune import FineTune as FineTune
from llm_worker_client.llm_engine.model import Model as Model
