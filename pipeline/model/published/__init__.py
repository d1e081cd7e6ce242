"""The published code's checkpoint format, read and written."""
