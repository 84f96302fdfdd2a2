"""More work than one caller may ask for: choices, stops, words, answers, requests at once."""

from support.tables.attacks.row import (
    ANSWERED,
    CANARY,
    EITHER,
    Attack,
    anthropic,
    chat,
    completion,
    engine,
    params,
    raw,
    responses,
)

STOPS, BIAS = 100_000, 500_000


def stops(count: int) -> list[str]:
    return [f"stop {number}" for number in range(count)]


def bias(count: int) -> dict[str, int]:
    return {str(number): 1 for number in range(count)}


ROWS = [
    Attack(
        "100,000 stop strings (raw)", lambda: params(stop=stops(STOPS), max_tokens=30), harmful=True
    ),
    Attack(
        "100,000 stop strings, stream (raw)",
        lambda: {**params(stop=stops(STOPS), max_tokens=30), "stream": True},
        harmful=True,
    ),
    Attack("100,000 stop strings (chat)", lambda: chat(stop=stops(STOPS))),
    Attack("100,000 stop strings (completions)", lambda: completion(stop=stops(STOPS))),
    Attack("100,000 stop strings (messages)", lambda: anthropic(stop_sequences=stops(STOPS))),
    Attack("100,000 stop sequences (LLM Engine)", lambda: engine(stop_sequences=stops(STOPS))),
    Attack(
        "100,000 stop strings in a list",
        lambda: {"prompts": ["a"] * 20, "sampling_params": {"stop": stops(STOPS)}},
        EITHER,
    ),
    Attack("a stop string of 2 MB (raw)", lambda: params(stop="a" * 2_000_000), EITHER),
    Attack("a stop string of 2 MB (chat)", lambda: chat(stop="a" * 2_000_000), EITHER),
    Attack("16 stop strings of 100 KB (raw)", lambda: params(stop=["a" * 100_000] * 16), EITHER),
    Attack("an empty stop string (raw)", lambda: params(stop=[""]), EITHER),
    Attack("an empty stop string (chat)", lambda: chat(stop=[""]), EITHER),
    Attack("a bad word of 2 MB (raw)", lambda: params(bad_words=["five " * 400_000]), harmful=True),
    Attack("a bad word of 2 MB (chat)", lambda: chat(bad_words=["five " * 400_000]), harmful=True),
    Attack("a bad word of 2 MB (completions)", lambda: completion(bad_words=["five " * 400_000])),
    Attack("20,000 bad words (raw)", lambda: params(bad_words=stops(20_000))),
    Attack("20,000 bad words (chat)", lambda: chat(bad_words=stops(20_000))),
    Attack("an empty bad word (raw)", lambda: params(bad_words=[""]), EITHER),
    Attack("a logit_bias of 500,000 (raw)", lambda: params(logit_bias=bias(BIAS)), harmful=True),
    Attack("a logit_bias of 500,000 (chat)", lambda: chat(logit_bias=bias(BIAS)), harmful=True),
    Attack(
        "a logit_bias of 500,000 (completions)",
        lambda: completion(logit_bias=bias(BIAS)),
        harmful=True,
    ),
    Attack("a logit_bias of 301 (raw)", lambda: params(logit_bias=bias(301))),
    Attack("500,000 allowed ids (raw)", lambda: params(allowed_token_ids=list(range(BIAS)))),
    Attack("500,000 stop ids (chat)", lambda: chat(stop_token_ids=list(range(BIAS)))),
    Attack("500,000 logprob ids (raw)", lambda: params(logprob_token_ids=list(range(BIAS)))),
    Attack(
        "n 256 with 20 logprobs, 60 tokens (raw)",
        lambda: params(n=256, logprobs=20, max_tokens=60, ignore_eos=True),
        EITHER,
        harmful=True,
    ),
    Attack(
        "n 256 with 20 logprobs, 60 tokens (chat)",
        lambda: chat(n=256, logprobs=True, top_logprobs=20, max_tokens=60, ignore_eos=True),
        EITHER,
        harmful=True,
    ),
    Attack(
        "n 256 with 5 logprobs, 60 tokens (completions)",
        lambda: completion(n=256, logprobs=5, max_tokens=60, ignore_eos=True),
        EITHER,
        harmful=True,
    ),
    Attack(
        "n 16 with 20 logprobs, 60 tokens (chat)",
        lambda: chat(n=16, logprobs=True, top_logprobs=20, max_tokens=60, ignore_eos=True),
        EITHER,
    ),
    Attack(
        "n 256 (chat, stream)",
        lambda: chat(n=256, stream=True, max_tokens=8, ignore_eos=True),
        EITHER,
    ),
    Attack("best_of 256 (raw)", lambda: params(best_of=256, n=1, max_tokens=8), EITHER),
    Attack("a beam of 64 (chat)", lambda: chat(use_beam_search=True, n=64, max_tokens=8), EITHER),
    Attack("n 257 (raw)", lambda: params(n=257)),
    Attack("n 16,384 (chat)", lambda: chat(n=16_384)),
    Attack("n 16,384 (completions)", lambda: completion(n=16_384)),
    Attack(
        "500 prompts with n 16",
        lambda: {"prompts": ["a"] * 500, "sampling_params": {"n": 16, "max_tokens": 1}},
        EITHER,
        harmful=True,
    ),
    Attack(
        "100 prompts with n 16 (completions)",
        lambda: completion(prompt=["a"] * 100, n=16, max_tokens=1),
        EITHER,
    ),
    Attack(
        "1,000 prompts with 20 logprobs of 50 tokens",
        lambda: {
            "prompts": ["a"] * 300,
            "sampling_params": {"logprobs": 20, "max_tokens": 50, "ignore_eos": True},
        },
        EITHER,
    ),
    Attack(
        "echo and prompt_logprobs of a long prompt (completions)",
        lambda: completion(prompt="five " * 180, echo=True, logprobs=5, prompt_logprobs=20),
        EITHER,
    ),
    Attack(
        "prompt_logprobs of a long prompt (chat)",
        lambda: chat(messages=[{"role": "user", "content": "five " * 180}], prompt_logprobs=20),
        EITHER,
    ),
    Attack(
        "a penalty at first use (raw)",
        lambda: params(repetition_penalty=1.1),
        ANSWERED,
        harmful=True,
    ),
    Attack("min_p at first use (raw)", lambda: params(min_p=0.1), ANSWERED, harmful=True),
    Attack("a bad word at first use (raw)", lambda: params(bad_words=["five"]), ANSWERED),
    Attack("logprobs at first use (raw)", lambda: params(logprobs=5), ANSWERED),
    Attack(
        "a schema at first use (raw)", lambda: params(guided_json={"type": "boolean"}), ANSWERED
    ),
    Attack("prompt_logprobs at first use (raw)", lambda: params(prompt_logprobs=2), ANSWERED),
    Attack("a beam at first use (raw)", lambda: params(use_beam_search=True, n=2), ANSWERED),
    Attack(
        "100 streams at once (chat)", lambda: chat(stream=True, max_tokens=8), EITHER, times=100
    ),
    Attack("100 answers at once (raw)", lambda: raw(prompt=f"{CANARY}"), EITHER, times=100),
    Attack("100 refusals at once (raw)", lambda: params(temperature=-1), times=100),
    Attack("100 refusals at once (chat)", lambda: chat(temperature=-1), times=100),
    Attack(
        "100 refused streams at once (chat)",
        lambda: chat(stream=True, logprobs=True, top_logprobs=50),
        times=100,
    ),
    Attack(
        "50 embeddings of a model that has none",
        lambda: {"route": "/v1/embeddings", "body": {"input": ["a"] * 50}},
        times=20,
    ),
    Attack(
        "50 looks at the metrics at once",
        lambda: {"route": "/metrics", "method": "GET"},
        EITHER,
        times=50,
    ),
    Attack(
        "20 looks at the description at once",
        lambda: {"route": "/openapi.json", "method": "GET"},
        EITHER,
        times=20,
    ),
    Attack(
        "20 lists at once",
        lambda: {"prompts": ["a"] * 50, "sampling_params": {"max_tokens": 2}},
        EITHER,
        times=20,
    ),
    Attack(
        "8 lists with n 16 at once",
        lambda: {"prompts": ["a"] * 60, "sampling_params": {"max_tokens": 2, "n": 16}},
        EITHER,
        times=8,
    ),
    Attack("background work (responses)", lambda: responses(background=True, store=True), EITHER),
    Attack(
        "stored answers, 50 at once (responses)", lambda: responses(store=True), EITHER, times=50
    ),
    Attack(
        "min_tokens as long as the context (raw)",
        lambda: params(min_tokens=10**6, max_tokens=10**6),
    ),
    Attack(
        "a list in a stream of tiny chunks",
        lambda: {
            "prompts": ["a"] * 200,
            "stream": True,
            "max_batch_size": 1,
            "min_batch_size": 0.001,
            "batch_size_growth_factor": 0.001,
            "sampling_params": {"max_tokens": 3},
        },
        EITHER,
    ),
]
