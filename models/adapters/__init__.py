"""Adapters for frozen backbones: inside the towers, or closed-form maps on top of them."""
