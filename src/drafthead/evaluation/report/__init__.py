"""A bench as files: the JSON, a Markdown table, and one HTML page that shows it all."""
