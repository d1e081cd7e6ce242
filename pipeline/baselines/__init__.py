"""The systems LOCOST is compared with, from transformers, behind Locost's own interface."""
