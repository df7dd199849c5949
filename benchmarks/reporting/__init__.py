"""Reports of benchmark results: Markdown tables and charts."""
