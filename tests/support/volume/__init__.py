"""Directories and disks that replace a network volume."""
