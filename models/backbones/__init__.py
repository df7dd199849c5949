"""Pre-trained dual encoders, their tokenizers, and how their towers compute."""

from typing import Literal

Precision = Literal["float32", "bfloat16"]  # of the text tower; settings import it without torch
