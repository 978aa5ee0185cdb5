"""Parts of a slot process that need no cluster."""
