"""Lives inside the processes of the tests; needs the standard library alone, and pytest for the plug-in."""
