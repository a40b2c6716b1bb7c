"""Long work: jobs in a shared folder, and the workers that process them."""
