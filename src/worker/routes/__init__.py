"""Code that the routes of all dialects share: a route's definition, its answer, and resources."""
