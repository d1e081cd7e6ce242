"""The stages of the demo and the replica, and what runs them one after another."""
