"""Reports: records in, files out."""
