"""Pictures in the style of others: encoded styles, pictures painted whole and in tiles."""
