"""The routes, each with its form: what a request holds, and what is asked of its task."""
