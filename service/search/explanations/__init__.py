"""Explanations of search results: ranks of a domain's own captions, and parts of a result's score."""
