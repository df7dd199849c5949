"""How it is reached: routes, problems, security, and the dashboard. No business rule lives here."""
