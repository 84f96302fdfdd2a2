"""Fine-tunes as the clients of OpenAI and of LLM Engine read them."""
