"""Many prompts in one call: they become a few jobs with lists, which several workers share.

RUNPOD_ENDPOINT_ID is the endpoint's id, RUNPOD_API_KEY your account's key.
"""

from llm_worker_client import LLM, SamplingParams

prompts = [f"Number {number} is" for number in range(1000)]
params = SamplingParams(temperature=0.7, max_tokens=8, seed=1)

with LLM() as llm:
    # A progress bar counts the answers; Ctrl-C cancels all jobs.
    outputs = llm.generate(prompts, params)
    for output in outputs[:3]:
        print(f"{output.prompt}{output.outputs[0].text}")
    print(len(outputs), "answers,", sum(len(one.outputs[0].token_ids) for one in outputs), "tokens")

    greedy = SamplingParams(temperature=0, max_tokens=60)
    questions = ["Count to ten.", "What does this worker do?"]
    chats = [[{"role": "user", "content": question}] for question in questions]
    for answer in llm.chat(chats, greedy, use_tqdm=False):
        print(answer.outputs[0].text)
