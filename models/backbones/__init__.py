"""Pre-trained dual encoders, their tokenizers, and how their towers compute."""
