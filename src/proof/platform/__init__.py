"""Runs an endpoint of this worker at RunPod, and compares the platform with the emulator."""
