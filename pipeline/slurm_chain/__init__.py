"""Pre-training, fine-tuning and evaluation as a chain of Slurm jobs."""
