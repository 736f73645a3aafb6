"""The paper's tables and figures beside ours, as files and one page."""
