"""Launches, bytes and operations of the model's steps, counted on a card that is not there."""
