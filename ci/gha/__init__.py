"""What GitHub Actions means: YAML as GitHub reads and writes it, expressions and limits. Nothing of ours."""
