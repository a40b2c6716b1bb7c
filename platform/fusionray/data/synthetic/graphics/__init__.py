"""What every part of the renderer uses: poses and rays, windows of pixels, light, colours and the canvas."""
