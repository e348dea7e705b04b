"""The highest load that keeps an SLO: of one deployment, or of several configurations."""
