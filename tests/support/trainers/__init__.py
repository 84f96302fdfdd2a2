"""A program that stands for the one that trains."""
