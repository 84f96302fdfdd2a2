"""Answers to raw jobs and scripts, by vLLM's engine instead of its routes.

``Generation.generate`` turns a job's parameters into vLLM's own (``sampling``), loads the adapter
that the job names, and renders its prompt or conversation with the objects of vLLM's server, as the
server does for its own routes. The engine's outputs, or those of the server's beam search, become
deltas. A script passes vLLM's own parameters and gets whole outputs; it can also embed.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

from vllm.outputs import EmbeddingRequestOutput
from vllm.pooling_params import PoolingParams
from vllm.renderers.inputs.preprocess import parse_model_prompt

from worker.engine import Delta
from worker.engine.run.adapters import Adapters
from worker.engine.run.requests.limits import check_bad_words, limit_texts
from worker.engine.run.requests.long_requests import mark_if_long
from worker.engine.run.sampling import (
    MAX_SPLIT_TOKENS,
    SamplingPlan,
    build_beam_search_params,
    limit_tokens_to_context,
    plan_from_vllm_params,
    plan_job_sampling,
)
from worker.engine.run.server import VllmServer
from worker.engine.seam.locations import import_from_vllm
from worker.engine.seam.protocols import (
    Client,
    CompletionOutput,
    EngineInput,
    Logprob,
    LoRARequest,
    RequestOutput,
    Tokenizer,
)
from worker.engine.seam.translation import raise_for_error_response, translate_errors
from worker.errors import InternalError, InvalidInput, RefusedByEngine, field_error
from worker.job import RawJob
from worker.job.sampling_params import Sampling
from worker.limits.inputs import RAW_SHAPE
from worker.media.loader import MediaLoader
from worker.messages import add_system_prompt
from worker.validation import SAMPLING_PARAMS

log = logging.getLogger(__name__)

NO_TOKENIZER = (
    "This worker runs without a tokenizer (SKIP_TOKENIZER_INIT), so it takes no text: send the "
    "prompt as a list of token ids."
)

# Text that a tokenizer returns for the bytes of an incomplete character.
INCOMPLETE_CHARACTER = "\N{REPLACEMENT CHARACTER}"

# The log probability that vLLM's server writes for a probability of zero.
MIN_LOGPROB = -9999.0

Decode = Callable[[list[int]], str]


def example_input(chat_renderer: Any) -> dict[str, Any]:
    """Return a short input for a test, in the richest form that a model accepts.

    The input is a conversation, or a text if the model has no chat template, or a list of token ids
    if it has no tokenizer. ``chat_renderer`` is the renderer of vLLM's server.
    """
    tokenizer = chat_renderer.renderer.tokenizer
    if tokenizer is None:
        return {"prompt": [0]}
    if chat_renderer.chat_template or getattr(tokenizer, "chat_template", None):
        return {"messages": [{"role": "user", "content": "Hi"}]}
    return {"prompt": "Hi"}


class Generation:
    """Generates answers and embeddings with vLLM's client. Use on the engine's loop.

    ``defaults`` are of sampling parameters that a raw job omits. ``system_prompt`` is the first
    message of conversations without a system message; None to add none.
    """

    def __init__(
        self,
        client: Client,
        server: VllmServer,
        adapters: Adapters,
        *,
        tasks: tuple[str, ...],
        defaults: Mapping[str, Any],
        system_prompt: str | None,
    ) -> None:
        self.adapters = adapters
        # Renderer of conversations in vLLM's server.
        self.chat_renderer = server.state.online_renderer
        self._client = client
        self._server = server
        self._tasks = tasks
        self._defaults = defaults
        self._system_prompt = system_prompt
        # The items of lists are rendered one after another: each may block the loop for some time,
        # for example with thousands of tools, and other requests would wait for all of them.
        self._list_renderer = asyncio.Lock()
        self._last_plan: tuple[Sampling, bool, SamplingPlan] | None = None

    async def generate(
        self, job: RawJob, request_id: str, *, in_list: bool = False
    ) -> AsyncGenerator[Delta, None]:
        """Yield the deltas of a raw job's answer; see ``Engine.generate``."""
        mark_if_long(long=in_list)
        plan = self.plan_answer(job.sampling_params, is_streamed=job.is_streamed)
        with translate_errors(self._client):
            adapter = await self.adapters.load_for_job(job)
            async with self._list_renderer if in_list else contextlib.nullcontext():
                if in_list:
                    # Without a pause, the refused items would all run in one step of the loop.
                    await asyncio.sleep(0)
                try:
                    prompt = await self.render_job_prompt(job, media=self._server.media)
                except RefusedByEngine as refused:
                    messages = self.chat_messages(job)
                    raise await self._server.add_token_count_to_refusal(
                        refused, {"messages": messages, "tools": job.tools, "prompt": job.prompt}
                    ) from refused
            tokenizer = self._tokenizer
            decode: Decode | None = None
            if job.is_streamed:
                # Without a tokenizer, tokens have no text.
                skip = plan.params.skip_special_tokens
                decode = (
                    partial(tokenizer.decode, skip_special_tokens=skip)
                    if tokenizer
                    else lambda _: ""
                )
            with_ids = job.return_token_ids or tokenizer is None or not plan.params.detokenize
            outputs = self._generate_outputs(prompt, plan, request_id, adapter)
            async with contextlib.aclosing(outputs):
                async for output in outputs:
                    self._check_and_rank_choices(output, plan, request_id)
                    for delta in split_into_deltas(output, decode, with_ids):
                        yield delta

    def plan_answer(self, params: Any, *, is_streamed: bool = False) -> SamplingPlan:
        """Return the plan for an answer, from a job's parameters or vLLM's ``SamplingParams``."""
        if "generate" not in self._tasks:
            raise InvalidInput("This worker's model does not generate text")
        # The items of a list share one Sampling object, so they can share one plan.
        if self._last_plan and self._last_plan[0] is params and self._last_plan[1] == is_streamed:
            return self._last_plan[2]
        is_job = isinstance(params, Sampling)
        with translate_errors(self._client):
            limit = self._client.model_config.max_model_len
            if self._server.max_output_tokens is not None:
                limit = min(limit, self._server.max_output_tokens)
            plan = (
                plan_job_sampling(params, self._defaults, is_streamed=is_streamed, limit=limit)
                if is_job
                else plan_from_vllm_params(params, limit)
            )
            check_bad_words(plan.params.bad_words, self._tokenizer, SAMPLING_PARAMS)
        if self._tokenizer is None:
            needed = {name: getattr(plan.params, name) for name in ("stop", "bad_words")}
            for name, value in {**needed, "use_beam_search": plan.sampling.use_beam_search}.items():
                if value:
                    raise field_error(name, "this worker has no tokenizer")
        if is_job:  # a script can change its ``SamplingParams`` later, so their plan isn't cached
            self._last_plan = params, is_streamed, plan
        return plan

    async def check_job(self, job: RawJob) -> None:
        """See ``Engine.check_job``."""
        self.plan_answer(job.sampling_params, is_streamed=job.is_streamed)
        await self.adapters.load_for_job(job)

    async def generate_full_answer(
        self, prompt: EngineInput, plan: SamplingPlan, request_id: str, adapter: LoRARequest | None
    ) -> RequestOutput:
        with translate_errors(self._client):
            outputs = self._generate_outputs(prompt, plan, request_id, adapter)
            async with contextlib.aclosing(outputs):
                (output,) = [output async for output in outputs]
            self._check_and_rank_choices(output, plan, request_id)
        return output

    async def embed(
        self, prompt: EngineInput, request_id: str, adapter: LoRARequest | None = None
    ) -> Any:
        """Return vLLM's ``EmbeddingRequestOutput`` of a prompt."""
        with translate_errors(self._client):
            params = PoolingParams(task="embed")
            outputs = self._client.encode(prompt, params, request_id, lora_request=adapter)
            async with contextlib.aclosing(outputs):
                (output,) = [output async for output in outputs]
        return EmbeddingRequestOutput.from_base(output)

    async def render_job_prompt(
        self, job: RawJob, chat_template: str | None = None, media: MediaLoader | None = None
    ) -> EngineInput:
        """Render the prompt or the conversation of a job; its sampling parameters are not used.

        Only trusted callers may pass a ``chat_template``, which replaces the model's, or omit
        ``media``: without a loader vLLM fetches media itself, without the worker's checks.
        """
        messages = self.chat_messages(job)
        if messages is None:
            limit_texts(self._client, {"prompt": job.prompt}, RAW_SHAPE)
            return await self.render_prompt(job.prompt)
        extras = {"tools": job.tools, "chat_template_kwargs": job.chat_template_kwargs}
        limit_texts(self._client, {"messages": messages, **extras}, RAW_SHAPE)
        if self._client.renderer.tokenizer is None:
            raise InvalidInput(NO_TOKENIZER, param="messages")
        add_prompt, kwargs = job.add_generation_prompt, job.chat_template_kwargs
        body: Mapping[str, Any] = {"messages": messages, "chat_template_kwargs": kwargs}
        has_media = True
        if media is not None:
            body, has_media = await media.inline_media(body, RAW_SHAPE.text_keys)
        with translate_errors(self._client, has_media=has_media):
            request = import_from_vllm("ChatCompletionRequest")(
                messages=body["messages"],
                tools=job.tools,
                # The template renders the tools; tool calls stay text in the answer.
                tool_choice="none" if job.tools else None,
                chat_template=chat_template,
                chat_template_kwargs=kwargs,
                add_generation_prompt=not job.continue_final_message
                if add_prompt is None
                else add_prompt,
                continue_final_message=job.continue_final_message,
            )
            _, prompts = raise_for_error_response(await self.chat_renderer.render_chat(request))
        prompt: EngineInput
        (prompt,) = prompts
        return prompt

    def chat_messages(self, job: RawJob) -> list[dict[str, Any]] | None:
        """Return the messages for the chat template; None if the job is not a conversation."""
        messages = job.chat_messages
        return None if messages is None else add_system_prompt(messages, self._system_prompt)

    async def render_prompt(self, prompt: Any) -> EngineInput:
        renderer = self._client.renderer
        if renderer.tokenizer is None:
            ids = prompt.get("prompt_token_ids") if isinstance(prompt, dict) else prompt
            if not isinstance(ids, list):
                raise InvalidInput(NO_TOKENIZER, param="prompt")
            # Unknown ids would kill the engine; with a tokenizer vLLM itself refuses them.
            size = self._client.model_config.get_vocab_size()
            if unknown := next((id_ for id_ in ids if not 0 <= id_ < size), None):
                raise InvalidInput(f"Token id {unknown} is out of vocabulary", param="prompt")
        with translate_errors(self._client):
            parsed = parse_model_prompt(self._client.model_config, prompt)
            (rendered,) = await renderer.render_cmpl_async([parsed])
        return rendered

    def _generate_outputs(
        self, prompt: EngineInput, plan: SamplingPlan, request_id: str, adapter: LoRARequest | None
    ) -> AsyncGenerator[RequestOutput, None]:
        if not plan.sampling.use_beam_search:
            params = limit_tokens_to_context(
                self._client.model_config.max_model_len, plan.params, prompt
            )
            return self._client.generate(prompt, params, request_id, lora_request=adapter)
        # Beam search is a part of vLLM's server, not of its engine.
        params = build_beam_search_params(plan, prompt, self._client.model_config)
        search = self._server.state.openai_serving_completion.beam_search
        outputs: AsyncGenerator[RequestOutput, None] = search(
            prompt, request_id, params, lora_request=adapter
        )
        return outputs

    def _check_and_rank_choices(
        self, output: RequestOutput, plan: SamplingPlan, request_id: str
    ) -> None:
        """Raise ``InternalError`` if a choice failed; drop all but a ranked answer's best ones."""
        if any(choice.finish_reason == "error" for choice in output.outputs):
            log.error("request %s failed in the engine", request_id)
            raise InternalError
        if plan.sampling.is_ranked:
            keep_best_choices(output, plan, self._tokenizer, self._end_token_ids)

    @property
    def _tokenizer(self) -> Tokenizer | None:
        return self._client.renderer.tokenizer

    @cached_property
    def _end_token_ids(self) -> set[int]:
        config = self._client.model_config.try_get_generation_config() or {}
        end_ids = config.get("eos_token_id") or []
        return set(end_ids if isinstance(end_ids, list) else [end_ids])


def split_into_deltas(
    output: RequestOutput, decode: Decode | None, include_ids: bool = False
) -> Iterator[Delta]:
    """Yield the deltas of one output of the engine.

    Even in a stream, an output can have several tokens of a choice, since vLLM merges the outputs
    of several steps until they are consumed. With ``decode``, each token gets its own delta;
    without it, or with more than ``MAX_SPLIT_TOKENS`` tokens, a choice gets one delta.
    """
    prompt_ids = output.prompt_token_ids or []
    prompt_logprobs: dict[int, list[dict[str, Any] | None]] = {}
    # The prompt's log probabilities are the same for all choices: only the first delta of choice 0
    # gets them.
    if output.prompt_logprobs:
        prompt_logprobs[0] = [None, *_render_logprobs(prompt_ids[1:], output.prompt_logprobs[1:])]
    for choice in output.outputs:
        token_ids = list(choice.token_ids)
        positions = _render_logprobs(token_ids, choice.logprobs or ())
        for text, tokens in _split_text_by_token(choice.text, token_ids, decode):
            is_last = tokens.stop == len(token_ids)
            yield Delta(
                index=choice.index,
                text=text,
                tokens=tokens.stop - tokens.start,
                prompt_tokens=len(prompt_ids),
                finish_reason=choice.finish_reason if is_last else None,
                stop_reason=choice.stop_reason if is_last else None,
                logprobs=positions[tokens] or None,
                token_ids=token_ids[tokens] if include_ids else None,
                prompt_logprobs=prompt_logprobs.pop(choice.index, None),
            )


def keep_best_choices(
    output: RequestOutput, plan: SamplingPlan, tokenizer: Any, end_ids: set[int]
) -> None:
    """Drop all but the best choices of a complete answer, and renumber them, in place.

    Log probabilities that the caller did not request are removed. Only beam search needs the
    tokenizer and ``end_ids``.
    """
    choices, sampling = list(output.outputs), plan.sampling
    is_beam_search = sampling.use_beam_search
    # Ranking needs log probabilities even if the caller did not request them.
    wants_logprobs = sampling.vllm_params.keys() & {"logprobs", "logprob_token_ids"}
    if not is_beam_search:  # beam search has already ranked the choices
        choices.sort(key=lambda choice: choice.cumulative_logprob or 0.0, reverse=True)
    output.outputs = choices[: sampling.n]
    for index, choice in enumerate(output.outputs):
        choice.index = index
        if is_beam_search and not plan.params.ignore_eos:
            _truncate_after_end(choice, plan.params, tokenizer, end_ids)
        if not wants_logprobs:
            choice.logprobs = None
        elif is_beam_search:
            # Beam search reports more candidates than the caller requested.
            choice.logprobs = [
                _top_candidates(candidates, chosen, plan.params.logprobs, tokenizer.decode)
                for chosen, candidates in zip(choice.token_ids, choice.logprobs or (), strict=False)
            ]


def _truncate_after_end(
    choice: CompletionOutput, params: Any, tokenizer: Any, end_ids: set[int]
) -> None:
    """End a choice where sampling would: vLLM's beam search stops at only one of the end tokens."""
    ids = list(choice.token_ids)
    end = next((position for position, id_ in enumerate(ids) if id_ in end_ids), None)
    if end is not None:
        skip = params.skip_special_tokens
        choice.text = tokenizer.decode(ids[:end], skip_special_tokens=skip)
        choice.token_ids = ids[: end + 1]
        choice.finish_reason, choice.stop_reason = "stop", ids[end]


def _top_candidates(
    candidates: Mapping[int, Logprob], chosen: int, count: int, decode: Decode
) -> dict[int, Logprob]:
    """Return the chosen token and the ``count`` best candidates (all if negative), all decoded."""
    top = {
        id_: logprob
        for id_, logprob in candidates.items()
        if id_ == chosen or count < 0 or (logprob.rank or 0) <= count
    }
    for id_, logprob in top.items():
        logprob.decoded_token = decode([id_])
    return top


def _split_text_by_token(
    text: str, ids: list[int], decode: Decode | None
) -> Iterator[tuple[str, slice]]:
    """Split a text among its tokens; yield each part of the text with the slice of its tokens.

    Without ``decode``, or with more than ``MAX_SPLIT_TOKENS`` tokens, the text is one part. The
    joined parts are the whole text. If the first token completes a character that began before
    ``ids``, some text moves to the next token, but no character is split.
    """
    start = 0
    if decode is not None and len(ids) <= MAX_SPLIT_TOKENS:
        for count in range(1, len(ids)):
            complete_length = len(decode(ids[:count]).rstrip(INCOMPLETE_CHARACTER))
            end = max(start, min(complete_length, len(text)))
            yield text[start:end], slice(count - 1, count)
            start = end
        yield text[start:], slice(max(len(ids) - 1, 0), len(ids))
    else:
        yield text, slice(0, len(ids))


def _render_logprobs(ids: Sequence[int], positions: Iterable[Any]) -> list[dict[str, Any]]:
    """Render the chosen token of each position, and all candidates, the likeliest first."""
    return [
        {
            **_render_candidate(chosen, candidates[chosen]),
            "top": [
                _render_candidate(id_, logprob)
                for id_, logprob in sorted(candidates.items(), key=lambda item: item[1].rank or 0)
            ],
        }
        for chosen, candidates in zip(ids, positions, strict=False)
    ]


def _render_candidate(id_: int, logprob: Logprob) -> dict[str, Any]:
    # Tokens that structured output excludes have minus infinity, which JSON does not have. Extreme
    # sampling parameters make NaN. ``max`` returns its first argument if the second is NaN.
    value = max(MIN_LOGPROB, logprob.logprob)
    return {"token": logprob.decoded_token, "id": id_, "logprob": value}
