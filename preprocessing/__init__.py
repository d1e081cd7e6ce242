"""Raw text to shards: CPU only, needs neither torch nor DeepSpeed."""
