"""Requests and responses of the Cinestrata API, shared by the service and its clients; one module per subject."""

__version__ = "2.0.0"  # of the application, the API and the clients
