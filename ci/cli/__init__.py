"""The command `nightcap`: one thin module a command, which parses, calls and prints."""
