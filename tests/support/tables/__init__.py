"""Tables that several depths of the tests go through."""
