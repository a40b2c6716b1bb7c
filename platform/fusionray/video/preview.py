"""A picture of what was rendered last, for whoever waits."""

from __future__ import annotations

from pathlib import Path

from fusionray.faces.image_files.decode import encode_image
from fusionray.safety.provenance import Provenance
from fusionray.safety.signing import Signer
from fusionray.storage.atomic_files import replace_file
from fusionray.video.files.reader import VideoReader

LONGEST_SIDE = 640


def write_preview(film: Path, path: Path, signer: Signer, provenance: Provenance) -> None:
    """Write the first frame of a finished segment to `path`, a PNG, upright, small and signed.

    The folder is made if it is not there, but not the one that it lies in: somebody may have removed that.

    Raises: VideoRejected; OSError.
    """
    reader = VideoReader(film)
    picture = reader.see(next(reader.read_frames()), LONGEST_SIDE)
    path.parent.mkdir(exist_ok=True)
    replace_file(path, signer.sign(encode_image(picture), "image/png", provenance))
