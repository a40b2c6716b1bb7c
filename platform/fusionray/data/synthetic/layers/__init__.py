"""What a picture is composed of, from the background to the sensor grain: one module draws one layer."""
