"""Readers: from input files to documents, summaries and texts."""
