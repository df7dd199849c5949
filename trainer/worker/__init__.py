"""Celery jobs of the trainer, with their access to catalog and storage."""
