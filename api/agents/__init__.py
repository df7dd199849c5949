"""The library for agents: tools of the Model Context Protocol (MCP), over HTTP and over standard input and output."""
