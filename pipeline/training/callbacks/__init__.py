"""Everything but the training loop itself, one concern per file."""
