"""The library for agents: Model Context Protocol (MCP) tools over HTTP, and over standard input and output."""
