"""A spec becomes the text of GitHub workflows, and a check that the committed files are that text."""
