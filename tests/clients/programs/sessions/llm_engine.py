"""Calls of LLM Engine's client; its URL and key are in the environment."""

from typing import Any

from llmengine import Completion

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
PARAMS: list[dict[str, Any]] = [
    {},
    {"max_new_tokens": 4, "temperature": 0.0, "stop_sequences": ["\n"]},
    {"top_k": 5, "top_p": 0.9, "presence_penalty": 0.1, "frequency_penalty": 0.1},
    {"return_token_log_probs": True, "include_stop_str_in_output": True},
    {"guided_json": SCHEMA},
    {"guided_regex": "[0-9]{3}"},
    {"guided_choice": ["yes", "no"]},
    {"guided_grammar": 'root ::= "yes" | "no"'},
]

prompt = "Question: Is job 42 done?"
for params in PARAMS:
    answer = Completion.create(model="demo", prompt=prompt, **params).output.text
    list(Completion.create(model="demo", prompt=prompt, stream=True, **params))
    prompt += f"\nAnswer: {answer}\nQuestion: And now?"
