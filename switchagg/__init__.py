"""The switch and its protocol."""
