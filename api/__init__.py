"""The HTTP API and the HTML pages. Business rules live in `service`."""
