"""Requests and responses of the API of Cinestrata, which the service and its clients share; one module per subject."""
