"""What GitHub Actions means: YAML as GitHub reads and writes it, expressions, commands and limits. Nothing of ours."""
