"""What all routes share: the row of a route, an answer, and what it is answered with."""
