"""Requests and responses of the API of Cinestrata, which the service and its clients share; one module per subject."""

__version__ = "1.0.0"  # of the application, the API and the clients
