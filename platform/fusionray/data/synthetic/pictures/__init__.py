"""Render seeded pictures for style transfer: contents (scenes, shapes, landscapes) and styles (painted textures)."""

from __future__ import annotations

from fusionray.data.synthetic.pictures.contents import draw_contents
from fusionray.data.synthetic.pictures.styles import draw_style

__all__ = ["draw_contents", "draw_style"]
