"""Feature selection on pooled data beside ours."""
