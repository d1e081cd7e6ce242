"""Estimates of the memory, time and energy of a training run."""
