"""What a bundle can be asked for, by its task: the work on a request, and the routes that lead to it."""
