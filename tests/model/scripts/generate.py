"""Uses `LLM` in many ways for generation, chats and adapters; never closes it."""

import contextlib
import io
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
from demo_model import ANSWERS, MEMORY, PASSAGE
from model.scripts.shared import check_refusal, collect_failures, report, run_job, texts
from support.engine.requests import text_of

from worker.offline import LLM

GREEDY = {"temperature": 0, "max_tokens": 400}
START, ENDING = PASSAGE
QUESTION, ANSWER = next(iter(ANSWERS.items()))


def user_message(content: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": content}]


def wrong_arguments_are_refused(model: str) -> None:
    refused = partial(check_refusal, partial(LLM, model))
    unknown = "'max_model_length': did you mean 'max_model_len'?"
    refused("TypeError", unknown, max_model_length=512)
    # Refused arguments start no read-ahead process.
    assert not psutil.Process().children()
    wrong = ("DTYPE = 'int3'", "MAX_MODEL_LEN = 'many'")
    refused("SettingsError", *wrong, max_model_len="many", dtype="int3", swap_space=4)
    other_source = ("MAX_CONCURRENCY = '0'", "MAX_MODEL_LEN = 'many'")
    refused("SettingsError", *other_source, max_model_len="many", max_concurrency=0)
    check_refusal(LLM, "SettingsError", "there is no such directory", model=f"{model}/nowhere")
    refused("StartFailed", "max_model_len (10000000)", max_model_len=10_000_000)


def prompts_may_have_every_form(llm: LLM) -> None:
    generate = partial(llm.generate, sampling_params=GREEDY, use_tqdm=False)
    (first,) = generate(START)
    ids = first.prompt_token_ids
    forms = [START, ids, {"prompt": START}, {"prompt_token_ids": ids}]
    assert [texts(generate(form)) for form in forms] == [[ENDING]] * 4
    assert texts(generate(forms)) == [ENDING] * 4
    # The forms of older code.
    assert texts(generate(prompt_token_ids=[ids, ids])) == [ENDING] * 2
    assert texts(llm.generate(None, GREEDY, ids, use_tqdm=False)) == [ENDING]
    assert generate([]) == []
    # Two calls cause one warning.
    assert texts(generate(START, prompt_adapter_request=object())) == [ENDING]
    assert texts(generate(START, prompt_adapter_request=object())) == [ENDING]


def parameters_are_a_dict_or_an_object_and_shared_or_one_per_prompt(llm: LLM) -> None:
    from vllm import SamplingParams  # noqa: PLC0415 - after the engine has been started

    def lengths(sampling_params: Any, count: int = 1) -> list[int]:
        outputs = llm.generate([START] * count, sampling_params, use_tqdm=False)
        return [len(output.outputs[0].token_ids) for output in outputs]

    vllms = SamplingParams(temperature=0, max_tokens=5, n=1)
    before = repr(vllms)
    # Sampled answers may stop early.
    assert max(lengths(None, 9)) == 16
    several = [{"max_tokens": 1}, vllms, {"max_tokens": 16, "ignore_eos": True}]
    assert lengths(several, 3) == [1, 5, 16]
    assert repr(vllms) == before
    vllms.max_tokens = 6
    assert lengths(vllms) == [6]
    count = "sampling_params: 1 of them for 2 prompts"
    check_refusal(lengths, "ValueError", count, sampling_params=[vllms], count=2)
    unknown = {"max_tokns": 1}
    check_refusal(lengths, 400, "did you mean 'max_tokens'?", sampling_params=unknown)


def structured_outputs_are_a_dict_or_an_object(llm: LLM) -> None:
    from vllm import SamplingParams  # noqa: PLC0415 - after the engine has been started

    def answer(sampling_params: Any, constraint: Any) -> str:
        outputs = llm.generate(
            START, sampling_params, use_tqdm=False, guided_options_request=constraint
        )
        return texts(outputs)[0]

    vllms = SamplingParams(temperature=0, max_tokens=20)
    assert answer(GREEDY, {"guided_choice": ["maybe", "never"]}) in {"maybe", "never"}
    number = answer(None, SimpleNamespace(guided_regex="[0-9]{4}", guided_json=None))
    assert (number.isdecimal(), len(number)) == (True, 4)
    letters = answer(vllms, {"guided_regex": "[a-c]{7}"})
    assert (set(letters) <= set("abc"), len(letters)) == (True, 7)
    assert vllms.structured_outputs is None


def a_refusal_aborts_the_other_requests_and_the_engine_continues(llm: LLM) -> None:
    long = {**GREEDY, "ignore_eos": True, "max_tokens": 900}
    generate = partial(llm.generate, sampling_params=long, use_tqdm=False)
    before: list[Any] = [START] * 3
    check_refusal(generate, 400, "2000 input tokens", prompts=[*before, [5] * 2000])
    assert llm._engine.unfinished_request_count == 0
    check_refusal(generate, 400, "out of vocabulary", prompts=[*before, [10**6]])
    check_refusal(llm.embed, 400, "does not support pooling", prompts="a")
    assert texts(llm.generate(START, GREEDY, use_tqdm=False)) == [ENDING]


def conversations_are_answered(llm: LLM) -> None:
    chat = partial(llm.chat, sampling_params=GREEDY, use_tqdm=False)
    messages = user_message(QUESTION)
    remembered = MEMORY.messages[:3]
    assert texts(chat(messages)) == [ANSWER]
    # Answers have the order of the prompts.
    assert (
        texts(chat([user_message(question) for question in ANSWERS] * 2)) == [*ANSWERS.values()] * 2
    )
    assert texts(chat([remembered, messages])) == [MEMORY.messages[3]["content"], ANSWER]
    assert texts(chat(messages, chat_template="<|begin_of_text|>" + START)) == [ENDING]
    begun = ANSWER.index(" Face")  # between two tokens
    turn = [*messages, {"role": "assistant", "content": ANSWER[:begun]}]
    continued = chat(turn, add_generation_prompt=False, continue_final_message=True)
    assert texts(continued) == [ANSWER[begun:]]
    check_refusal(chat, 400, "messages.0.role", messages=[{"content": "no role"}])
    count = "sampling_params: 1 of them for 2 prompts"
    check_refusal(llm.chat, "ValueError", count, messages=[messages] * 2, sampling_params=[GREEDY])


def a_progress_bar_is_printed_on_request(llm: LLM) -> None:
    def read_stderr(*, use_tqdm: bool) -> str:
        with contextlib.redirect_stderr(io.StringIO()) as stderr:
            llm.generate([START] * 3, GREEDY, use_tqdm=use_tqdm)
        return stderr.getvalue()

    assert "3/3" in read_stderr(use_tqdm=True)
    assert read_stderr(use_tqdm=False) == ""


def an_adapter_changes_only_the_answers_of_its_prompts(llm: LLM, folder: Path) -> None:
    from vllm.lora.request import LoRARequest  # noqa: PLC0415 - after the engine has been started

    short = {"temperature": 0, "max_tokens": 10}

    def answers(requests: Any, count: int = 1) -> list[str]:
        outputs = llm.generate([START] * count, short, use_tqdm=False, lora_request=requests)
        return texts(outputs)

    def request(name: str, id_: int) -> Any:
        return LoRARequest(name, id_, str(folder / name))

    whisper = request("whisper", 7)
    (base_answer,) = answers(None)
    changed, again = answers(whisper, 2)
    *_, shout = several = answers([None, whisper, None, request("shout", 1)], 4)
    assert ENDING.startswith(base_answer)
    assert changed == again
    assert len({base_answer, changed, shout}) == 3
    assert several == [base_answer, changed, base_answer, shout]
    count = "lora_request: 1 of them for 2 prompts"
    check_refusal(answers, "ValueError", count, requests=[whisper], count=2)
    check_refusal(answers, 404, "No adapter found", requests=request("missing", 8))
    broken = [None, request("broken", 9)]
    check_refusal(answers, "RefusedByEngine", "deserializing header", requests=broken, count=2)
    assert answers([None, whisper], 2) == [base_answer, changed]
    # The adapter in the arguments is served under its name.
    job = run_job(llm, {"prompt": START, "sampling_params": short, "model": "shout"})
    assert text_of(job) == shout
    hello, other = texts(
        llm.chat([user_message("Hello!")] * 2, short, False, lora_request=[None, whisper])
    )
    assert ANSWERS["Hello!"].startswith(hello)
    assert other != hello


def main(model: str, folder: Path) -> None:
    failed = collect_failures(partial(wrong_arguments_are_refused, model))
    llm = LLM(
        model,
        max_model_len=1024,
        swap_space=4,
        enable_lora=True,
        max_lora_rank=8,
        # One slot more than adapters: on a CPU, vLLM uses the last slot for requests without an
        # adapter.
        max_loras=3,
        lora_modules=[{"name": "shout", "path": str(folder / "shout")}],
    )
    parts = (
        prompts_may_have_every_form,
        parameters_are_a_dict_or_an_object_and_shared_or_one_per_prompt,
        structured_outputs_are_a_dict_or_an_object,
        a_refusal_aborts_the_other_requests_and_the_engine_continues,
        conversations_are_answered,
        a_progress_bar_is_printed_on_request,
    )
    failed |= collect_failures(*(partial(part, llm) for part in parts))
    failed |= collect_failures(
        partial(an_adapter_changes_only_the_answers_of_its_prompts, llm, folder)
    )
    report(failed=failed)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
