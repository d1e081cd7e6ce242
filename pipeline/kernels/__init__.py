"""The convolution kernels of the state-space layers, in numbers and in pictures."""
