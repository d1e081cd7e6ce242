"""Scores and the tables they go into."""
