"""The OpenAI path over plain HTTP, without a platform: every request is a job."""
