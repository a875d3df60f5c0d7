"""An application with handlers that misbehave in every way, for the tests of the worker."""
