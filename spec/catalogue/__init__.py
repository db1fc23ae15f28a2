"""The catalogue: models, devices, clusters and example jobs as YAML, each with where its numbers come from."""
