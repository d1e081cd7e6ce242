"""Benchmarks of the model, of preprocessing, data loading and training; the GPU check."""
