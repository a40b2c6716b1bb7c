"""A rendered film of a person who speaks, turns and moves, with sound, and with the truth of each frame.

Shape suffixes: T frames, A attributes, P parameters of an identity.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from pathlib import Path
from typing import Any

import av
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fusionray.data import synthetic
from fusionray.data.synthetic.crowd import draw_background
from fusionray.evaluation.clips import MOVING
from fusionray.faces.face import Image
from fusionray.nets.pixels import to_uint8

# Attributes that move with the head, and seconds from one drawn pose to the next; the mouth speaks faster.
HEAD = (*(name for name in MOVING if name != "mouth_open"), "shift_x", "shift_y", "scale")
HEAD_SECONDS, MOUTH_SECONDS = 1.2, 0.24
# How far the head goes from its first pose to the drawn ones.
HEAD_SHARE = 0.6
SAMPLE_RATE, VOICE_HERTZ = 48_000, 140.0
RENDERED_AT_ONCE = 8


@dataclass(frozen=True, eq=False)
class RenderedFilm:
    """`width` x `height` pixels; the person fills a square of the height in the middle. `rate`: frames a second.

    `target` and `source` are the seeds of two people, `seed` is that of the movement.
    """

    width: int = 1280
    height: int = 720
    num_frames: int = 240
    rate: int = 25
    target: int = 11
    source: int = 12
    seed: int = 5
    encoder: dict[str, str] = field(default_factory=lambda: {"crf": "16", "preset": "veryfast", "g": "50"})

    @cached_property
    def attributes(self) -> Tensor:
        """Return the attributes of each frame, float32 [T,A]."""
        first = synthetic.sample_attributes(1, self.seed)
        # Dark glasses would hide what a viewer looks at.
        first[:, synthetic.ATTRIBUTE_NAMES.index("glasses")] = 0
        attributes_TA = first.repeat(self.num_frames, 1)
        for names, seconds, share in ((HEAD, HEAD_SECONDS, HEAD_SHARE), (("mouth_open",), MOUTH_SECONDS, 1.0)):
            columns = [synthetic.ATTRIBUTE_NAMES.index(name) for name in names]
            place_T = torch.arange(self.num_frames) / self.rate / seconds
            poses = synthetic.sample_attributes(int(place_T[-1]) + 2, self.seed + 1)[:, columns]
            poses = torch.lerp(first[:, columns], poses, share)
            before_T = place_T.long()
            eased_T1 = (1 - torch.cos((place_T - before_T) * math.pi))[:, None] / 2
            attributes_TA[:, columns] = torch.lerp(poses[before_T], poses[before_T + 1], eased_T1)
        return attributes_TA

    @property
    def left(self) -> int:
        """Return where the square of the person begins."""
        return (self.width - self.height) // 2

    @cached_property
    def points(self) -> NDArray[np.float32]:
        """Return the true landmarks of each frame, [T,5,2] in pixels."""
        identity = synthetic.sample_identities(1, self.target).expand(self.num_frames, -1)
        points = synthetic.project_landmarks(identity, self.attributes).numpy() * self.height - 0.5
        return np.asarray(points + np.array([self.left, 0]), np.float32)

    def draw(self, person: int | None = None) -> Iterator[Image]:
        """Draw the frames with the target, or with another person: the true fusion."""
        identity = synthetic.sample_identities(1, self.target if person is None else person)
        ground = draw_background(np.random.default_rng(self.seed), self.width, self.height)
        for first in range(0, self.num_frames, RENDERED_AT_ONCE):
            part = self.attributes[first : first + RENDERED_AT_ONCE]
            drawn = synthetic.render(identity.expand(len(part), -1), part, self.height)
            for picture in to_uint8(drawn * 2 - 1).permute(0, 2, 3, 1).numpy():
                frame = ground.copy()
                frame[:, self.left : self.left + self.height] = picture
                yield frame

    def draw_source(self, size: int = 512) -> Image:
        """Draw a picture of the source, in a look of its own."""
        identity, look = synthetic.sample_identities(1, self.source), synthetic.sample_attributes(1, self.seed + 2)
        (picture,) = to_uint8(synthetic.render(identity, look, size) * 2 - 1).permute(0, 2, 3, 1).numpy()
        return np.ascontiguousarray(picture)

    def write(self, path: Path, *, repeat: int = 1, person: int | None = None) -> Path:
        """Write the film with its sound; `repeat`: how often it is shown, one after another; `person` as for `draw`."""
        frames = self.draw(person) if repeat == 1 else itertools.cycle(list(self.draw(person)))
        with av.open(str(path), "w") as container:
            video: Any = container.add_stream("libx264", self.rate, options=self.encoder)
            video.codec_context.width, video.codec_context.height = self.width, self.height
            video.codec_context.pix_fmt, video.codec_context.time_base = "yuv420p", Fraction(1, 12_800)
            sound: Any = container.add_stream("aac", SAMPLE_RATE, layout="mono")
            for number, picture in enumerate(itertools.islice(frames, repeat * self.num_frames)):
                frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
                frame.pts, frame.time_base = number * 12_800 // self.rate, Fraction(1, 12_800)
                container.mux(video.encode(frame.reformat(format="yuv420p")))
            container.mux(video.encode(None))
            for block in self.speak(repeat):
                container.mux(sound.encode(block))
            container.mux(sound.encode(None))
        return path

    def speak(self, repeat: int) -> Iterator[av.AudioFrame]:
        """Yield a voice that is as loud as the mouth is open."""
        open_T = self.attributes[:, synthetic.ATTRIBUTE_NAMES.index("mouth_open")].numpy().clip(0, 1)
        count = repeat * self.num_frames * SAMPLE_RATE // self.rate
        for first in range(0, count, 1024):
            seconds = np.arange(first, min(first + 1024, count)) / SAMPLE_RATE
            loud = np.interp(seconds * self.rate % self.num_frames, np.arange(self.num_frames), open_T)
            tones = sum(np.sin(2 * np.pi * VOICE_HERTZ * tone * seconds) / tone for tone in (1, 2, 3, 5))
            block = av.AudioFrame.from_ndarray((0.15 * loud * tones).astype(np.float32)[None], "fltp", "mono")
            block.sample_rate, block.pts = SAMPLE_RATE, first
            yield block
