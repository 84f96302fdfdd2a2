"""Uses `LLM` in every way for generation, chats and adapters; never closes it."""

import contextlib
import io
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from demo_model import ANSWERS, MEMORY, PASSAGE
from model.scripts.shared import raw, refusal, report, texts

from worker.offline import LLM
from worker.start import ahead

GREEDY = {"temperature": 0, "max_tokens": 400}
START, _ = PASSAGE
QUESTION, ANSWER = next(iter(ANSWERS.items()))
BEGUN = ANSWER.index(" Face")  # between two tokens


def arguments(model: str) -> dict[str, Any]:
    return {
        "unknown": refusal(lambda: LLM(model, max_model_length=512)),
        "reads_ahead": bool(ahead._running),
        "wrong": refusal(lambda: LLM(model, max_model_len="many", dtype="int3", swap_space=4)),
        "wrong_everywhere": refusal(lambda: LLM(model, max_model_len="many", max_concurrency=0)),
        "no_such_model": refusal(lambda: LLM(f"{model}/nowhere")),
        "too_much": refusal(lambda: LLM(model, max_model_len=10_000_000)),
    }


def prompts(llm: LLM) -> dict[str, Any]:
    (first,) = llm.generate(START, GREEDY, use_tqdm=False)
    ids = first.prompt_token_ids
    forms = [START, ids, {"prompt": START}, {"prompt_token_ids": ids}]
    chats = llm.chat(
        [[{"role": "user", "content": question}] for question in ANSWERS], GREEDY, use_tqdm=False
    )
    turns = [output.prompt_token_ids for output in chats]
    return {
        "type": f"{type(first).__module__}.{type(first).__name__}",
        "alone": [texts(llm.generate(form, GREEDY, use_tqdm=False)) for form in forms],
        "together": texts(llm.generate(forms, GREEDY, use_tqdm=False)),
        "legacy": texts(
            llm.generate(prompt_token_ids=[ids, ids], sampling_params=GREEDY, use_tqdm=False)
        ),
        "legacy_flat": texts(llm.generate(None, GREEDY, ids, use_tqdm=False)),
        "many": texts(llm.generate(turns * 2, GREEDY, use_tqdm=False)),
        "none": llm.generate([], GREEDY, use_tqdm=False),
    }


def params(llm: LLM) -> dict[str, Any]:
    from vllm import SamplingParams  # noqa: PLC0415 - after the engine has been started

    def lengths(sampling_params: Any, count: int = 1) -> list[list[int]]:
        outputs = llm.generate([START] * count, sampling_params, use_tqdm=False)
        return [[len(choice.token_ids) for choice in output.outputs] for output in outputs]

    # Sampled answers may end early.
    whole = {"ignore_eos": True}
    vllms = SamplingParams(temperature=0, max_tokens=5, n=1)
    before = repr(vllms)
    again = SamplingParams(temperature=0, max_tokens=3)
    changed = lengths(again)
    again.max_tokens = 6
    changed += lengths(again)
    return {
        "none": max(lengths(None, 9)),
        "dict": lengths({"max_tokens": 4, **whole}),
        "vllms": lengths(vllms),
        "untouched": repr(vllms) == before,
        "choices": lengths(SamplingParams(n=3, max_tokens=2, **whole)),
        "one_for_each": lengths([{"max_tokens": 1}, vllms, {"max_tokens": 16, **whole}], 3),
        "tuple": lengths(({"max_tokens": 1}, vllms), 2),
        "changed": changed,
        "too_few": refusal(lambda: lengths([vllms], 2)),
        "unknown": refusal(lambda: lengths({"max_tokns": 1})),
    }


def guided(llm: LLM) -> dict[str, Any]:
    from vllm import SamplingParams  # noqa: PLC0415 - after the engine has been started

    def answer(sampling_params: Any, constraint: Any) -> str:
        outputs = llm.generate(
            START, sampling_params, use_tqdm=False, guided_options_request=constraint
        )
        return texts(outputs)[0]

    vllms = SamplingParams(temperature=0, max_tokens=20)
    return {
        "dict": answer(GREEDY, {"guided_choice": ["maybe", "never"]}),
        "object": answer(None, SimpleNamespace(guided_regex="[0-9]{4}", guided_json=None)),
        "vllms": answer(vllms, {"guided_regex": "[a-c]{7}"}),
        "untouched": vllms.structured_outputs is None,
        "two": refusal(lambda: answer(None, {"guided_regex": "a", "guided_choice": ["b"]})),
    }


def ranked(llm: LLM) -> dict[str, Any]:
    def choices(prompt: str, **params: Any) -> list[dict[str, Any]]:
        (output,) = llm.generate(prompt, params, use_tqdm=False)
        return [
            {"text": choice.text, "logprob": choice.cumulative_logprob} for choice in output.outputs
        ]

    sampled = {"seed": 5, "max_tokens": 20, "ignore_eos": True}
    beam = {"use_beam_search": True, "max_tokens": 10}
    return {
        "all": choices("Once", n=4, logprobs=0, **sampled),
        "best": choices("Once", n=2, best_of=4, **sampled),
        "greedy": choices(START, temperature=0, max_tokens=10, logprobs=0),
        "narrow": choices(START, **beam),
        "beam": choices(START, n=2, best_of=4, **beam),
    }


def refused(llm: LLM) -> dict[str, Any]:
    long = {**GREEDY, "ignore_eos": True, "max_tokens": 900}

    def refusal_with(*wrong: Any) -> dict[str, Any]:
        before = [START] * 3
        return refusal(lambda: llm.generate([*before, *wrong], long, use_tqdm=False))

    return {
        "too_long": refusal_with([5] * 2000),
        "unfinished": llm._engine.unfinished_requests,
        "unknown_id": refusal_with([10**6]),
        "embedding": refusal(lambda: llm.embed("a", use_tqdm=False)),
        "afterwards": texts(llm.generate(START, GREEDY, use_tqdm=False)),
    }


def chat(llm: LLM) -> dict[str, Any]:
    messages = [{"role": "user", "content": QUESTION}]
    remembered = MEMORY.messages[:3]

    def ids(**options: Any) -> list[int]:
        (output,) = llm.chat(messages, {"max_tokens": 1}, use_tqdm=False, **options)
        found: list[int] = output.prompt_token_ids
        return found

    begun = [*messages, {"role": "assistant", "content": ANSWER[:BEGUN]}]
    continued: dict[str, Any] = {"add_generation_prompt": False, "continue_final_message": True}
    template = "<|begin_of_text|>" + START
    return {
        "one": texts(llm.chat(messages, GREEDY, use_tqdm=False)),
        "several": texts(llm.chat([remembered, messages], GREEDY, use_tqdm=False)),
        "template": texts(llm.chat(messages, GREEDY, use_tqdm=False, chat_template=template)),
        "continued": texts(llm.chat(begun, GREEDY, use_tqdm=False, **continued)),
        "begins": ids(),
        "does_not_begin": ids(add_generation_prompt=False),
        "wrong": refusal(lambda: llm.chat([{"content": "no role"}], GREEDY, use_tqdm=False)),
        "too_few": refusal(lambda: llm.chat([messages] * 2, [GREEDY], use_tqdm=False)),
    }


def bar(llm: LLM) -> dict[str, str]:
    def shown(use_tqdm: bool) -> str:
        with contextlib.redirect_stderr(io.StringIO()) as stderr:
            llm.generate([START] * 3, GREEDY, use_tqdm=use_tqdm)
            llm.chat([{"role": "user", "content": "Hello!"}], GREEDY, use_tqdm=use_tqdm)
        return stderr.getvalue()

    return {"on": shown(True), "off": shown(False)}


def adapters(llm: LLM, model: str, folder: Path) -> dict[str, Any]:
    from vllm.lora.request import LoRARequest  # noqa: PLC0415 - after the engine has been started

    short = {"temperature": 0, "max_tokens": 10}

    def answers(requests: Any, count: int = 1) -> list[str]:
        outputs = llm.generate([START] * count, short, use_tqdm=False, lora_request=requests)
        return texts(outputs)

    def request(name: str, id_: int) -> Any:
        return LoRARequest(name, id_, str(folder / name))

    hello = [{"role": "user", "content": "Hello!"}]
    whisper = request("whisper", 7)
    plain = {"prompt": START, "sampling_params": short}
    names: list[dict[str, str]] = [
        {"model": "shout"},
        {"lora": "shout"},
        {"model": Path(model).name},
        {"model": "no"},
        {},
    ]
    return {
        "none": answers(None),
        "all": answers(whisper, 2),
        "one_for_each": answers([None, whisper, None, request("shout", 1)], 4),
        "too_few": refusal(lambda: answers([whisper], 2)),
        "missing": refusal(lambda: answers(request("missing", 8))),
        "broken": refusal(lambda: answers([None, request("broken", 9)], 2)),
        "afterwards": answers([None, whisper], 2),
        "raw": [raw(llm, {**plain, **keys})[0] for keys in names],
        "chat": texts(llm.chat([hello, hello], short, False, lora_request=[None, whisper])),
        "prompt_adapters": [
            texts(llm.generate(START, GREEDY, use_tqdm=False, prompt_adapter_request=object()))
            for _ in range(2)
        ],
    }


def main(model: str, folder: Path) -> None:
    checked = arguments(model)
    llm = LLM(
        model,
        max_model_len=1024,
        swap_space=4,
        enable_lora=True,
        max_lora_rank=8,
        # One more than there are: on a CPU vLLM uses the last slot for requests without an adapter.
        max_loras=3,
        lora_modules=[{"name": "shout", "path": str(folder / "shout")}],
    )
    report(
        arguments=checked,
        prompts=prompts(llm),
        params=params(llm),
        guided=guided(llm),
        ranked=ranked(llm),
        refused=refused(llm),
        chat=chat(llm),
        bar=bar(llm),
        adapters=adapters(llm, model, folder),
    )


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
