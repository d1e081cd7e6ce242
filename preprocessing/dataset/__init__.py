"""From documents to samples, their statistics, and views of a finished dataset."""
