"""Check the product on a GPU, with checkpoints of realistic size."""
