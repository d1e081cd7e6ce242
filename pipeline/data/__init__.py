"""The global sample order and the micro-batches cut from it."""
