"""Encoders for texts and videos, built from a backbone and the learned weights of a release."""
