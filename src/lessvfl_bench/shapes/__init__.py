"""Tables whose truth is known, and what methods find in them."""
