"""The metrics: ROUGE, BERTScore, BLANC, an LLM as judge, and their bootstrap intervals."""
