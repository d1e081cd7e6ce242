"""Evaluation of a checkpoint on a test set: all systems, predicted, scored and aggregated."""
