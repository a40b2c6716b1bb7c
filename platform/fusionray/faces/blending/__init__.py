"""Put a fused face back into its picture: pasting, skin and grain."""
