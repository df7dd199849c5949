"""HTML pages of the search and library user interface, and the sign-in."""
