"""Runs an engine without a tokenizer, on ids alone; never closes it."""

import sys
from typing import Any

from model.scripts.shared import raw, refusal, report

from worker.offline import LLM

IDS = [0, 40, 50, 60]
PARAMS = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}


def main(model: str) -> None:
    llm = LLM(model, skip_tokenizer_init=True, max_model_len=512)
    outputs = llm.generate([IDS, {"prompt_token_ids": IDS}], PARAMS, use_tqdm=False)
    jobs: dict[str, dict[str, Any]] = {
        "ids": {"prompt": IDS},
        "streamed": {"prompt": IDS, "stream": True},
        # The first failure: it must not kill the engine.
        "unknown_id": {"prompt": [10**6]},
        "text": {"prompt": "Hi"},
        "messages": {"messages": [{"role": "user", "content": "Hi"}]},
        "stop": {"prompt": IDS, "sampling_params": {**PARAMS, "stop": ["a"]}},
        "bad_words": {"prompt": IDS, "sampling_params": {**PARAMS, "bad_words": ["a"]}},
        "beam": {"prompt": IDS, "sampling_params": {"use_beam_search": True, "n": 2}},
    }
    report(
        ids=[list(output.outputs[0].token_ids) for output in outputs],
        texts=[output.outputs[0].text for output in outputs],
        text=refusal(lambda: llm.generate(["Hi"], PARAMS, use_tqdm=False)),
        text_in_dict=refusal(lambda: llm.generate({"prompt": "Hi"}, PARAMS, use_tqdm=False)),
        chat=refusal(lambda: llm.chat([{"role": "user", "content": "Hi"}], use_tqdm=False)),
        stop=refusal(lambda: llm.generate(IDS, {**PARAMS, "stop": ["a"]}, use_tqdm=False)),
        bad_words=refusal(
            lambda: llm.generate(IDS, {**PARAMS, "bad_words": ["a"]}, use_tqdm=False)
        ),
        jobs={
            name: raw(llm, {"sampling_params": PARAMS, **payload}) for name, payload in jobs.items()
        },
    )


if __name__ == "__main__":
    main(sys.argv[1])
