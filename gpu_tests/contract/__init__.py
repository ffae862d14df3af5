"""The contract of a captured attention backend: traffic, perturbations, checks, and reports that name the cause."""
