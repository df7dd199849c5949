"""Access to the service: scopes, API keys, users and sessions."""
