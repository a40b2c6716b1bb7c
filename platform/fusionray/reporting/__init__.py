"""Pages with pictures, charts and tables: one HTML file that needs nothing beside it, and Markdown."""
