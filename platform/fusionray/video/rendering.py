"""The second pass over a segment: decode its frames, change them, and encode them, each a few ahead of the next."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

from av import VideoFrame

from fusionray.data.prefetch import map_ahead
from fusionray.safety.mark import Mark
from fusionray.video.files.encoders import EncoderSettings
from fusionray.video.files.reader import VideoReader
from fusionray.video.files.writer import VideoWriter
from fusionray.video.frame_mark import FrameMark
from fusionray.video.segments import Segment
from fusionray.video.stages import Advance, StageSeconds

# Frames that go through a model together, and groups of them that wait or are computed at the same time.
GROUP_FRAMES, GROUPS_AHEAD = 8, 2

# A frame and its number, counted from the first one of its segment.
NumberedFrame = tuple[int, VideoFrame]
# Changes frames in place: gets them in their order, and yields them so, in groups; its stages count their seconds.
FramesChange = Callable[[Iterable[NumberedFrame], StageSeconds], Generator[Sequence[NumberedFrame]]]


def render_segment(
    reader: VideoReader,
    segment: Segment,
    change: FramesChange,
    *,
    path: Path,
    settings: EncoderSettings,
    mark: Mark | None = None,
    advance: Advance,
) -> dict[str, float]:
    """Write all frames of a segment in their order to `path`, without sound, after `change` has changed them.

    `mark` is drawn on every frame.

    Returns: the seconds of each stage. Raises: VideoRejected, VideoNotWritten; what `change` raises.
    """
    seconds = StageSeconds()
    frame_mark = FrameMark(mark, reader.description) if mark else None
    decoded = seconds.measure_each("decode", reader.read_frames(segment.start, segment.end))
    with (
        VideoWriter(path, reader.description, settings=settings) as writer,
        closing(change(enumerate(decoded), seconds)) as groups,
    ):
        for group in groups:
            for _, frame in group:
                with seconds.measure("encode"):
                    if frame_mark is not None:
                        frame_mark.draw(frame)
                    writer.write(frame)
                advance(1)
    return seconds.seconds


def change_groups(change: Callable[[Sequence[NumberedFrame]], object], stage: str, count: int) -> FramesChange:
    """Make a change of frames from one of groups: `count` at a time, several groups from several threads."""

    def change_frames(frames: Iterable[NumberedFrame], seconds: StageSeconds) -> Generator[Sequence[NumberedFrame]]:
        def work(group: Sequence[NumberedFrame]) -> Sequence[NumberedFrame]:
            with seconds.measure(stage):
                change(group)
            return group

        return map_ahead(work, group_by(frames, count), at_once=GROUPS_AHEAD)

    return change_frames


def group_by(frames: Iterable[NumberedFrame], count: int) -> Iterator[list[NumberedFrame]]:
    """Yield frames, `count` at a time."""
    group: list[NumberedFrame] = []
    for frame in frames:
        group.append(frame)
        if len(group) == count:
            yield group
            group = []
    if group:
        yield group
