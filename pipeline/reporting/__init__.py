"""Reports as HTML and Markdown, made from the files that runs and evaluations leave."""
