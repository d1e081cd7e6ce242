"""The chain of Slurm jobs from raw text to the report; the standard library alone."""
