"""Directories and disks that stand for a network volume."""
