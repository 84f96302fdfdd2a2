"""Serves the OpenAI API over plain HTTP, without a platform: every request becomes a job."""
