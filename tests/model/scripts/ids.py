"""Runs an engine without a tokenizer, on token ids only; never closes it."""

import sys
from functools import partial
from typing import Any

from model.scripts.shared import check_refusal, collect_failures, report, run_job
from support.engine.scripted import failure

from worker.offline import LLM

IDS = [0, 40, 50, 60]
# A stream of this many tokens has several chunks, even on a busy machine.
LENGTH = 300
PARAMS = {"temperature": 0, "max_tokens": LENGTH, "ignore_eos": True}
NO_TOKENIZER = "send the prompt as a list of token ids"
# Refused jobs, each with a part of the error message.
REFUSED: list[tuple[dict[str, Any], str]] = [
    # The first failure must not kill the engine.
    ({"prompt": [10**6]}, "out of vocabulary"),
    ({"prompt": "Hi"}, NO_TOKENIZER),
    ({"messages": [{"role": "user", "content": "Hi"}]}, NO_TOKENIZER),
    ({"sampling_params": {**PARAMS, "stop": ["a"]}}, "this worker has no tokenizer"),
    ({"sampling_params": {**PARAMS, "bad_words": ["a"]}}, "this worker has no tokenizer"),
    ({"sampling_params": {"use_beam_search": True, "n": 2}}, "this worker has no tokenizer"),
]


def ids_are_answered_with_ids(llm: LLM) -> None:
    generate = partial(llm.generate, sampling_params=PARAMS, use_tqdm=False)
    first, second = (one.outputs[0] for one in generate([IDS, {"prompt_token_ids": IDS}]))
    assert first.token_ids == second.token_ids
    assert (len(first.token_ids), first.text) == (LENGTH, "")
    job = {"prompt": IDS, "sampling_params": PARAMS}
    (whole,), chunks = run_job(llm, job), run_job(llm, {**job, "stream": True})
    assert whole["choices"][0]["token_ids"] == [*first.token_ids]
    assert len(chunks) > 1
    streamed = [id_ for chunk in chunks for id_ in chunk["choices"][0]["token_ids"]]
    assert streamed == [*first.token_ids]
    assert whole["usage"] == chunks[-1]["usage"] == {"input": 4, "output": LENGTH}


def requests_that_need_a_tokenizer_are_refused(llm: LLM) -> None:
    for payload, message in REFUSED:
        prompt = {} if "messages" in payload else {"prompt": IDS}
        error = failure(run_job(llm, {"sampling_params": PARAMS, **prompt, **payload}))
        assert (error["code"], message in error["message"]) == (400, True), (payload, error)
    check_refusal(llm.generate, 400, NO_TOKENIZER, prompts=["Hi"], use_tqdm=False)


def main(model: str) -> None:
    llm = LLM(model, skip_tokenizer_init=True, max_model_len=512)
    parts = (requests_that_need_a_tokenizer_are_refused, ids_are_answered_with_ids)
    report(failed=collect_failures(*(partial(part, llm) for part in parts)))


if __name__ == "__main__":
    main(sys.argv[1])
