"""Learned parts of Cinestrata: backbones, adapters, encoders, releases and routing, as plain torch and numpy code."""
