"""Every method under the same transport: ``lessvfl bench equal``."""
