"""The report that compares a reproduction with the paper's tables and figures."""
