"""Request checks: API key, session cookie, host and origin, body size, security headers."""
