"""Checks of the product on a GPU, and checkpoints of realistic size for them."""
