"""Serve LLMs on AWS: typed settings and catalogues, what turns them into running services, and the command line."""
