"""What leaves a party, how it travels, and its bill."""
