"""Report benchmark results: Markdown tables."""
