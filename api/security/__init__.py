"""Authentication and authorization: API keys, session cookies, route scopes, and allowed origins."""
