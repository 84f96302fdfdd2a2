"""OpenAI's client: the sentences that are nearest in meaning to a question.

    python examples/gateway/openai_embeddings.py minilm

The argument is the name of the embedding model, which is the endpoint's only model or its second
one (EMBEDDING_MODEL_NAME). OPENAI_BASE_URL and OPENAI_API_KEY are as in openai_chat.py.
"""

import sys

import openai

SENTENCES = [
    "The invoice is due at the end of the month.",
    "A cat sleeps on the warm roof.",
    "Restart the server to apply the new settings.",
]
QUESTION = "When do I have to pay?"

with openai.OpenAI() as client:
    found = client.embeddings.create(model=sys.argv[1], input=[QUESTION, *SENTENCES])

question, *vectors = (item.embedding for item in found.data)
# The vectors have length 1, so this is the cosine of their angle.
scores = [sum(a * b for a, b in zip(question, vector, strict=True)) for vector in vectors]
for score, sentence in sorted(zip(scores, SENTENCES, strict=True), reverse=True):
    print(f"{score:.2f} {sentence}")
