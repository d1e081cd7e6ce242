"""From texts or token ids to summaries."""
