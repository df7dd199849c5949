"""Encoder families, one module per way in which a release conditions its encoders.

Every module defines ``FAMILIES``, a tuple of :class:`~models.encoders.encoder_family.EncoderFamily`.
"""
