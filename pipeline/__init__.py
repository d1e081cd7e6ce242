"""LOCOST: model, training, evaluation (data flows: shards, data, training, evaluation)."""
