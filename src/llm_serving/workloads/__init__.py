"""What to serve: patterns, the model and engine catalogs, the resolver and the renderer."""
