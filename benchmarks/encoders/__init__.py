"""Whether frozen encoders keep their contract, with random weights."""
