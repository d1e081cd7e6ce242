"""The training loop, and the parts that it is made of."""
