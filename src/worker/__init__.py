"""A RunPod Serverless worker that runs vLLM's engine inside its own process."""
