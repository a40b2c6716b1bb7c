"""What keeps synthetic pictures of people honest."""
