"""The platform's charts and manifests: charts/platform.yaml made into commands for one fleet."""
