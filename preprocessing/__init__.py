"""Raw text to shards, on CPUs, without torch or DeepSpeed."""
