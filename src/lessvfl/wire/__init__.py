"""What leaves a party, how it travels, and its bill."""

BEHAVIOUR = 2  # as a method has one; 2: a front before Flight
