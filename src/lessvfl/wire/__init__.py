"""What leaves a party, how it travels, and its bill."""

BEHAVIOUR = 3  # as a method has one; 2: a front before Flight, 3: short frames
