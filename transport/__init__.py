"""How gradients reach the switch, or each other."""
