"""The `openai` package, unchanged, against `make endpoint`."""

import asyncio
from typing import Any

import openai
import pytest
from demo_model import ANSWERS, PASSAGE, PIRATE
from pydantic import BaseModel
from support.engine.requests import ENDLESS
from support.processes.local_endpoint import LocalEndpoint

from emulator import Emulator, Options

COUNT = "Count to ten."
COUNTED = ANSWERS[COUNT]
CHAT: dict[str, Any] = {
    **{"model": "demo", "temperature": 0},
    "messages": [{"role": "user", "content": COUNT}],
}
TO_DESCRIBE: Any = [{"role": "user", "content": "Describe the worker as JSON."}]
RESPONSE: dict[str, Any] = {"model": "demo", "input": COUNT, "temperature": 0}
COMPLETION: dict[str, Any] = {"model": "demo", "prompt": PASSAGE[0], "temperature": 0}
LONG: dict[str, Any] = {
    **{name: ENDLESS[name] for name in ("max_tokens", "n")},
    **{"temperature": 1, "extra_body": {"ignore_eos": True}},
}


class Description(BaseModel):
    """The demo model's learned description of the worker."""

    name: str
    streams: bool
    chunks: list[int]


class Verdict(BaseModel):
    """An answer that it was not taught."""

    right: bool


DESCRIBED = Description(name="demo", streams=True, chunks=[1, 3, 9, 27])


class TestChat:
    """`client.chat.completions`."""

    def test_a_stream_ends_with_the_usage_where_it_was_asked_for(
        self, openai_client: openai.OpenAI
    ) -> None:
        create = openai_client.chat.completions.create
        whole = create(**CHAT)
        *events, last = create(**CHAT, stream=True, stream_options={"include_usage": True})
        assert [event.usage for event in events] == [None] * len(events)
        assert (last.choices, last.usage) == ([], whole.usage)
        assert "".join(event.choices[0].delta.content or "" for event in events) == COUNTED

    def test_an_answer_is_parsed_into_a_pydantic_model(self, openai_client: openai.OpenAI) -> None:
        parse = openai_client.chat.completions.parse
        whole = parse(**{**CHAT, "messages": TO_DESCRIBE}, response_format=Description)
        assert whole.choices[0].message.parsed == DESCRIBED
        # The model has not learned such an answer to this question; the schema enforces one.
        assert parse(**CHAT, response_format=Verdict).choices[0].message.parsed

    async def test_the_asyncio_clients_streaming_helper_gives_the_deltas_and_the_whole(
        self, async_openai_client: openai.AsyncOpenAI
    ) -> None:
        async def chat() -> Any:
            async with async_openai_client.chat.completions.stream(**CHAT) as stream:
                deltas = [event.delta async for event in stream if event.type == "content.delta"]
                return "".join(deltas), (await stream.get_final_completion()).choices[0]

        for text, choice in await asyncio.gather(chat(), chat(), chat()):
            assert text == choice.message.content == COUNTED
            assert choice.finish_reason == "stop"

    async def test_parameters_have_their_effect(
        self, async_openai_client: openai.AsyncOpenAI
    ) -> None:
        async def chat(**more: Any) -> Any:
            return (await async_openai_client.chat.completions.create(**{**CHAT, **more})).choices

        cut, stopped, several, logged, free, chosen, parts, named = await asyncio.gather(
            chat(max_completion_tokens=3),
            chat(stop=["three"]),
            chat(n=3, temperature=2, seed=1, max_tokens=8),
            chat(logprobs=True, top_logprobs=2, max_tokens=2),
            chat(response_format={"type": "json_object"}, max_tokens=60),
            chat(extra_body={"structured_outputs": {"choice": ["yes", "no"]}}),
            chat(messages=[{"role": "user", "content": [{"type": "text", "text": COUNT}]}]),
            chat(model="tiny/demo"),
        )
        assert cut[0].finish_reason == "length"
        assert stopped[0].message.content == "one, two, "
        assert len({choice.message.content for choice in several}) == 3
        assert [len(token.top_logprobs) for token in logged[0].logprobs.content] == [2, 2]
        assert free[0].message.content.lstrip().startswith("{")
        assert chosen[0].message.content in ("yes", "no")
        assert parts[0].message.content == named[0].message.content == COUNTED


class TestResponses:
    """`client.responses`."""

    def test_instructions_come_before_the_input(self, openai_client: openai.OpenAI) -> None:
        system, question, answer = [message["content"] for message in PIRATE.messages]
        asked = {**RESPONSE, "input": [{"role": "user", "content": question}]}
        whole = openai_client.responses.create(**asked, instructions=system)
        assert (whole.status, whole.output_text) == ("completed", answer)
        assert whole.usage
        assert whole.usage.total_tokens == whole.usage.input_tokens + whole.usage.output_tokens

    def test_a_cut_answer_is_incomplete(self, openai_client: openai.OpenAI) -> None:
        whole = openai_client.responses.create(**RESPONSE, max_output_tokens=3)
        assert whole.status == "incomplete"
        assert whole.incomplete_details
        assert whole.incomplete_details.reason == "max_output_tokens"

    def test_a_stream_has_its_events_in_order(self, openai_client: openai.OpenAI) -> None:
        events = list(openai_client.responses.create(**RESPONSE, stream=True))
        deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
        assert "".join(deltas) == COUNTED
        assert list(dict.fromkeys(event.type for event in events)) == [
            *("response.created", "response.in_progress"),
            *("response.output_item.added", "response.content_part.added"),
            *("response.output_text.delta", "response.output_text.done"),
            *("response.content_part.done", "response.output_item.done"),
            "response.completed",
        ]
        assert [event.sequence_number for event in events] == list(range(len(events)))

    async def test_an_answer_is_parsed_into_a_pydantic_model(
        self, async_openai_client: openai.AsyncOpenAI
    ) -> None:
        asked: dict[str, Any] = {**RESPONSE, "input": TO_DESCRIBE, "text_format": Description}
        assert (await async_openai_client.responses.parse(**asked)).output_parsed == DESCRIBED
        async with async_openai_client.responses.stream(**asked) as stream:
            assert (await stream.get_final_response()).output_parsed == DESCRIBED


class TestCompletions:
    """`client.completions`."""

    def test_the_prompt_is_echoed_with_its_log_probabilities(
        self, openai_client: openai.OpenAI
    ) -> None:
        asked = {**COMPLETION, "echo": True, "logprobs": 2, "max_tokens": 3}
        choice = openai_client.completions.create(**asked).choices[0]
        assert choice.text.startswith(PASSAGE[0] + PASSAGE[1][:5])
        logged = choice.logprobs
        assert logged
        assert logged.tokens
        assert "".join(logged.tokens[1:]) == choice.text  # the first is the beginning of a text
        assert logged.token_logprobs
        assert logged.token_logprobs[0] is None
        assert all(value <= 0 for value in logged.token_logprobs[1:])

    def test_every_prompt_can_have_several_answers(self, openai_client: openai.OpenAI) -> None:
        more: dict[str, Any] = {"n": 2, "max_tokens": 4, "temperature": 2, "seed": 5}
        asked = {**COMPLETION, "prompt": [[5, 6, 7], [8, 9]], **more}
        whole = openai_client.completions.create(**asked)
        assert [choice.index for choice in whole.choices] == [0, 1, 2, 3]
        texts = ["", "", "", ""]
        for event in openai_client.completions.create(**asked, stream=True):
            for choice in event.choices:
                texts[choice.index] += choice.text
        assert texts == [choice.text for choice in whole.choices]
        assert len(set(texts)) == 4


class TestModels:
    """`client.models`."""

    def test_models_are_listed_and_described(self, openai_client: openai.OpenAI) -> None:
        names = [model.id for model in openai_client.models.list()]
        assert names[:3] == ["demo", "tiny/demo", "minilm"]
        assert [openai_client.models.retrieve(name).id for name in names] == names

    @pytest.mark.parametrize("name", ["nope", "tiny/nope"])
    def test_an_unknown_one_is_not_found(self, openai_client: openai.OpenAI, name: str) -> None:
        with pytest.raises(openai.NotFoundError, match=f"There is no model '{name}'"):
            openai_client.models.retrieve(name)


class TestErrors:
    """The content of its exceptions."""

    @pytest.mark.parametrize("stream", [False, True])
    def test_the_error_of_a_bad_value_has_all_of_the_workers_fields(
        self, openai_client: openai.OpenAI, stream: bool
    ) -> None:
        with pytest.raises(openai.BadRequestError, match="temperature") as refused:
            openai_client.chat.completions.create(**{**CHAT, "temperature": 9}, stream=stream)
        body: Any = refused.value.body
        assert (body["code"], body["type"]) == (refused.value.status_code, refused.value.type)
        assert (refused.value.status_code, body["retryable"]) == (400, False)
        assert body["request_id"]

    @pytest.mark.parametrize("stream", [False, True])
    def test_a_prompt_that_is_too_long_is_a_bad_request(
        self, openai_client: openai.OpenAI, stream: bool
    ) -> None:
        with pytest.raises(openai.BadRequestError, match="2048"):
            openai_client.responses.create(model="demo", input="token " * 3000, stream=stream)

    def test_what_is_not_there_is_not_found(self, openai_client: openai.OpenAI) -> None:
        with pytest.raises(openai.NotFoundError, match="model or adapter 'nope'") as refused:
            openai_client.chat.completions.create(**{**CHAT, "model": "nope"})
        assert refused.value.type == "NotFoundError"
        with pytest.raises(openai.NotFoundError, match="There is no route '/v1/moderations'"):
            openai_client.moderations.create(input="Hi")
        with pytest.raises(openai.NotFoundError, match="There is no route '/v1/responses/nope'"):
            openai_client.responses.retrieve("nope")
        # Workers keep no responses: the turns go into the input.
        with pytest.raises(openai.NotFoundError, match="resp_nope"):
            openai_client.responses.create(**RESPONSE, previous_response_id="resp_nope")

    def test_a_time_out_is_its_own_exception_tried_again_and_cancels_the_jobs(
        self, make_endpoint: LocalEndpoint, openai_client: openai.OpenAI
    ) -> None:
        before = {job["id"] for job in make_endpoint.control("jobs")["jobs"]}
        hasty = openai_client.with_options(timeout=1, max_retries=1)
        with pytest.raises(openai.APITimeoutError):
            hasty.chat.completions.create(**{**CHAT, **LONG})
        # The next job is served once the engine is rid of them.
        assert openai_client.chat.completions.create(**CHAT, max_tokens=2).usage
        jobs = make_endpoint.control("jobs")["jobs"]
        statuses = [job["status"] for job in jobs if job["id"] not in before]
        assert statuses == ["CANCELLED", "CANCELLED", "COMPLETED"]

    async def test_a_wrong_key_is_an_authentication_error(self) -> None:
        async with Emulator(Options(api_key="right")) as emulator:
            url = emulator.openai_url
            async with openai.AsyncOpenAI(base_url=url, api_key="wrong") as client:
                with pytest.raises(openai.AuthenticationError):
                    await client.models.list()
