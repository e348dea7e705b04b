"""Serve LLMs on AWS: typed settings and catalogs, what turns them into running services, and the command line."""
