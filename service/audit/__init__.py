"""The audit log: which actor changed which resource, when and from which address."""
