"""Privacy: draws by purpose, noise on what leaves a side, and what it costs."""
