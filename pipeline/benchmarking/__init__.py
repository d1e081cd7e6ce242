"""Time and memory of the layer, the encoder and decoding; the check of a GPU."""
