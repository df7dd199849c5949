"""Report benchmark results: Markdown tables and charts."""
