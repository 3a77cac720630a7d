# The measuring loop and its endpoints.
