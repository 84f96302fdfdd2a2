"""Programs that measure this worker where it will run: on a machine with a GPU, and at RunPod."""
