"""Well-known networks, written down layer by layer from their papers."""
