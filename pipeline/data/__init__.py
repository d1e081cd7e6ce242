"""The global sample order, and micro-batches read in that order."""
