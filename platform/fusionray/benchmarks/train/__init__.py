"""`fusionray bench train`: the engine, its data and its scaling, against loops without them."""
