"""Methods of feature selection across parties: ``lessvfl bench rivals``."""
