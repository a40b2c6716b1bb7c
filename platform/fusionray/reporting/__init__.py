"""Report pages with pictures, charts and tables: one self-contained HTML file, and Markdown with image files."""
