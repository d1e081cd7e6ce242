"""The processes of a run: who they are, how they meet, what they agree on."""
