"""What people write: models of the specs, the loader with line-numbered errors, and the filter language."""
