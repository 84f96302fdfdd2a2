"""Scenarios of long work: batches and fine-tunes whose workers are killed."""
