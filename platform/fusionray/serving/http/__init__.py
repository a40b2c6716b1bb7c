"""HTTP: routes, forms, responses, problems, middleware and the web page."""
