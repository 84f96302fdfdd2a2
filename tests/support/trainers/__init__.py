"""A scripted trainer, and trainings with real models."""
