"""Celery worker of the trainer: the learning job and its access to the catalog and the storage."""
