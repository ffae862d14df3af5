"""What people write: typed models of the specs, the loader with line-numbered errors, and the filter language."""
