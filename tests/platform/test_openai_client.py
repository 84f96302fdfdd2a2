"""What the `openai` package offers beyond a plain chat, unchanged, against `make endpoint`."""

import asyncio
import json
from typing import Any

import openai
import pytest
from demo_model import ANSWERS, PASSAGE, PIRATE
from pydantic import BaseModel

COUNT = "Count to ten."
COUNTED = ANSWERS[COUNT]
CHAT: dict[str, Any] = {
    "model": "demo",
    "messages": [{"role": "user", "content": COUNT}],
    "temperature": 0,
}
DESCRIBE: dict[str, Any] = {
    **CHAT,
    "messages": [{"role": "user", "content": "Describe the worker as JSON."}],
}
RESPONSE: dict[str, Any] = {"model": "demo", "input": COUNT, "temperature": 0}
DESCRIBE_IN_RESPONSE: dict[str, Any] = {**RESPONSE, "input": DESCRIBE["messages"]}
COMPLETION: dict[str, Any] = {"model": "demo", "prompt": PASSAGE[0], "temperature": 0}


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
        self, client: openai.OpenAI
    ) -> None:
        create = client.chat.completions.create
        whole = create(**CHAT)
        *events, last = create(**CHAT, stream=True, stream_options={"include_usage": True})
        assert [event.usage for event in events] == [None] * len(events)
        assert (last.choices, last.usage) == ([], whole.usage)

    def test_the_streaming_helper_gives_the_deltas_and_the_whole(
        self, client: openai.OpenAI
    ) -> None:
        with client.chat.completions.stream(**CHAT) as stream:
            deltas = [event.delta for event in stream if event.type == "content.delta"]
            final = stream.get_final_completion()
        assert "".join(deltas) == final.choices[0].message.content == COUNTED
        assert final.choices[0].finish_reason == "stop"

    def test_an_answer_is_parsed_into_a_pydantic_model(self, client: openai.OpenAI) -> None:
        parse = client.chat.completions.parse
        whole = parse(**DESCRIBE, response_format=Description)
        assert whole.choices[0].message.parsed == DESCRIBED
        # The model has not learned such an answer to this question; the schema enforces one.
        forced = parse(**CHAT, response_format=Verdict)
        assert forced.choices[0].message.parsed

    async def test_the_asyncio_client_does_the_same(self, async_client: openai.AsyncOpenAI) -> None:
        async def streamed() -> Any:
            async with async_client.chat.completions.stream(
                **DESCRIBE, response_format=Description
            ) as stream:
                return (await stream.get_final_completion()).choices[0].message.parsed

        async def whole() -> Any:
            parsed = await async_client.chat.completions.parse(
                **DESCRIBE, response_format=Description
            )
            return parsed.choices[0].message.parsed

        assert [*await asyncio.gather(streamed(), whole())] == [DESCRIBED, DESCRIBED]

    async def test_parameters_have_their_effect(self, async_client: openai.AsyncOpenAI) -> None:
        async def chat(**more: Any) -> Any:
            return (await async_client.chat.completions.create(**{**CHAT, **more})).choices

        cut, stopped, several, logged, free, chosen, ended = await asyncio.gather(
            chat(max_completion_tokens=3),
            chat(stop=["three"]),
            chat(n=3, temperature=2, seed=1, max_tokens=8),
            chat(logprobs=True, top_logprobs=2, max_tokens=2),
            chat(response_format={"type": "json_object"}, max_tokens=60),
            chat(extra_body={"structured_outputs": {"choice": ["yes", "no"]}}),
            chat(messages=[{"role": "user", "content": [{"type": "text", "text": COUNT}]}]),
        )
        assert cut[0].finish_reason == "length"
        assert stopped[0].message.content == "one, two, "
        assert len({choice.message.content for choice in several}) == 3
        assert [len(token.top_logprobs) for token in logged[0].logprobs.content] == [2, 2]
        assert free[0].message.content.lstrip().startswith("{")
        assert chosen[0].message.content in ("yes", "no")
        assert ended[0].message.content == COUNTED

    def test_the_lines_of_a_stream_can_be_read_as_they_come(self, client: openai.OpenAI) -> None:
        with client.chat.completions.with_streaming_response.create(**CHAT, stream=True) as answer:
            lines = [line for line in answer.iter_lines() if line]
        assert (answer.status_code, lines[-1]) == (200, "data: [DONE]")
        events = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
        deltas = [event["choices"][0]["delta"] for event in events]
        assert "".join(delta.get("content") or "" for delta in deltas) == COUNTED


class TestResponses:
    """`client.responses`."""

    def test_it_answers(self, client: openai.OpenAI) -> None:
        whole = client.responses.create(**RESPONSE)
        assert (whole.status, whole.output_text) == ("completed", COUNTED)
        assert whole.usage
        assert whole.usage.total_tokens == whole.usage.input_tokens + whole.usage.output_tokens

    def test_instructions_come_before_the_input(self, client: openai.OpenAI) -> None:
        system, question, answer = [message["content"] for message in PIRATE.messages]
        asked = {**RESPONSE, "input": [{"role": "user", "content": question}]}
        assert client.responses.create(**asked, instructions=system).output_text == answer

    def test_a_cut_answer_is_incomplete(self, client: openai.OpenAI) -> None:
        whole = client.responses.create(**RESPONSE, max_output_tokens=3)
        assert whole.status == "incomplete"
        assert whole.incomplete_details
        assert whole.incomplete_details.reason == "max_output_tokens"

    def test_a_stream_has_its_events_in_order(self, client: openai.OpenAI) -> None:
        events = list(client.responses.create(**RESPONSE, stream=True))
        kinds = [event.type for event in events]
        deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
        assert "".join(deltas) == COUNTED
        assert list(dict.fromkeys(kinds)) == [
            *("response.created", "response.in_progress"),
            *("response.output_item.added", "response.content_part.added"),
            *("response.output_text.delta", "response.output_text.done"),
            *("response.content_part.done", "response.output_item.done"),
            "response.completed",
        ]
        numbers = [event.sequence_number for event in events]
        assert numbers == list(range(len(events)))

    def test_the_streaming_helper_gives_the_whole_response(self, client: openai.OpenAI) -> None:
        with client.responses.stream(**RESPONSE) as stream:
            deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
            assert stream.get_final_response().output_text == "".join(deltas) == COUNTED

    def test_an_answer_is_parsed_into_a_pydantic_model(self, client: openai.OpenAI) -> None:
        whole = client.responses.parse(**DESCRIBE_IN_RESPONSE, text_format=Description)
        assert whole.output_parsed == DESCRIBED

    async def test_the_asyncio_client_does_the_same(self, async_client: openai.AsyncOpenAI) -> None:
        async def streamed() -> Any:
            async with async_client.responses.stream(
                **DESCRIBE_IN_RESPONSE, text_format=Description
            ) as stream:
                return (await stream.get_final_response()).output_parsed

        async def whole() -> Any:
            parse = async_client.responses.parse
            return (await parse(**DESCRIBE_IN_RESPONSE, text_format=Description)).output_parsed

        async def plain() -> Any:
            return (await async_client.responses.create(**RESPONSE)).output_text

        answers = await asyncio.gather(streamed(), whole(), plain())
        assert [*answers] == [DESCRIBED, DESCRIBED, COUNTED]


class TestCompletions:
    """`client.completions`."""

    def test_the_prompt_is_echoed_with_its_log_probabilities(self, client: openai.OpenAI) -> None:
        asked = {**COMPLETION, "echo": True, "logprobs": 2, "max_tokens": 3}
        choice = client.completions.create(**asked).choices[0]
        assert choice.text.startswith(PASSAGE[0] + PASSAGE[1][:5])
        logged = choice.logprobs
        assert logged
        assert logged.tokens
        assert "".join(logged.tokens[1:]) == choice.text  # the first is the beginning of a text
        assert logged.token_logprobs
        assert logged.token_logprobs[0] is None
        assert all(value <= 0 for value in logged.token_logprobs[1:])

    def test_every_prompt_can_have_several_answers(self, client: openai.OpenAI) -> None:
        more: dict[str, Any] = {"n": 2, "max_tokens": 4, "temperature": 2, "seed": 5}
        asked = {**COMPLETION, "prompt": [[5, 6, 7], [8, 9]], **more}
        whole = client.completions.create(**asked)
        assert [choice.index for choice in whole.choices] == [0, 1, 2, 3]
        texts = ["", "", "", ""]
        for event in client.completions.create(**asked, stream=True):
            for choice in event.choices:
                texts[choice.index] += choice.text
        assert texts == [choice.text for choice in whole.choices]
        assert len(set(texts)) == 4


class TestModels:
    """`client.models`."""

    @pytest.mark.parametrize("name", ["demo", "tiny/demo"])
    def test_a_model_is_described(self, client: openai.OpenAI, name: str) -> None:
        model = client.models.retrieve(name)
        assert (model.id, model.object) == (name, "model")

    @pytest.mark.parametrize("name", ["nope", "tiny/nope"])
    def test_an_unknown_one_is_not_found(self, client: openai.OpenAI, name: str) -> None:
        with pytest.raises(openai.NotFoundError, match=f"There is no model '{name}'"):
            client.models.retrieve(name)

    def test_every_name_of_the_model_answers(self, client: openai.OpenAI) -> None:
        whole = client.chat.completions.create(**{**CHAT, "model": "tiny/demo"})
        assert whole.choices[0].message.content == COUNTED


class TestErrors:
    """The content of its exceptions."""

    def test_the_error_of_a_bad_value_has_all_of_the_workers_fields(
        self, client: openai.OpenAI
    ) -> None:
        with pytest.raises(openai.BadRequestError, match="temperature") as refused:
            client.chat.completions.create(**{**CHAT, "temperature": 9})
        body: Any = refused.value.body
        assert (body["code"], body["type"]) == (refused.value.status_code, refused.value.type)
        assert (refused.value.status_code, body["retryable"]) == (400, False)
        assert body["request_id"]

    @pytest.mark.parametrize("stream", [False, True])
    def test_a_prompt_that_is_too_long_is_a_bad_request(
        self, client: openai.OpenAI, stream: bool
    ) -> None:
        with pytest.raises(openai.BadRequestError, match="2048"):
            client.responses.create(model="demo", input="token " * 3000, stream=stream)

    def test_a_route_that_is_not_served_is_not_found(self, client: openai.OpenAI) -> None:
        with pytest.raises(openai.NotFoundError, match="There is no route '/v1/moderations'"):
            client.moderations.create(input="Hi")
        with pytest.raises(openai.NotFoundError, match="There is no route '/v1/responses/nope'"):
            client.responses.retrieve("nope")
        # Workers keep no responses: the turns go into the input.
        with pytest.raises(openai.NotFoundError, match="resp_nope"):
            client.responses.create(**RESPONSE, previous_response_id="resp_nope")
