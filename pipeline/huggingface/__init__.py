"""The folder that transformers loads: two modules that run inside it, and how it is made."""
