"""What a training run will need: memory, time, energy."""
