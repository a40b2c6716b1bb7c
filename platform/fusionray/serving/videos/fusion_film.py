"""The film of a job of face fusion: sources with consent, people chosen, targets that the policy permits."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import partial

from fusionray.bundle.bundle import Bundle
from fusionray.bundle.description import FACE_FUSION
from fusionray.errors import ImageRejected
from fusionray.faces.detectors.factory import DetectorPool
from fusionray.runtime.face_preprocessor import find_largest_face
from fusionray.runtime.fuser import Fuser
from fusionray.runtime.pixels import FloatArray
from fusionray.runtime.restorer import describe_makers, open_restorer
from fusionray.safety.consent import build_policy
from fusionray.serving.identities.store import open_store
from fusionray.serving.jobs.items import JobInputs
from fusionray.serving.jobs.uris import UriReader
from fusionray.serving.pipeline.picture_codec import Stopwatch, name_picture
from fusionray.serving.pipeline.source_faces import SourceFaces
from fusionray.serving.schema import FuseOptions, FuseTask
from fusionray.serving.videos.maker import FilmMaker, PreparedFilm
from fusionray.video.face_fusion.choosing import choose_all, choose_main, choose_similar
from fusionray.video.face_fusion.report import describe_fusion
from fusionray.video.face_fusion.tracks import Track
from fusionray.video.face_fusion.work import FusionTask, FusionWork, FusionWorker, count_searches


class FusionFilmMaker(FilmMaker):
    """Fuse the faces of a film."""

    task, role, stem = FACE_FUSION, "target", "fused"

    @property
    def fuse(self) -> FuseOptions:
        """Return the options of the client."""
        return FuseOptions(**self.options["fuse"])

    def prepare(self, inputs: JobInputs, bundle: Bundle) -> PreparedFilm:
        """Load the models, encode the source, and embed the reference.

        Raises: ImageRejected, ConsentRefused, UnknownIdentity; BundleInvalid, ProviderUnavailable; OSError.
        """
        detectors = DetectorPool(self.config.detector, count_searches(self.threads), self.config.smallest_face)
        restorer = open_restorer(self.config.restorer, self.runtime())
        boost = min(self.fuse.pixel_boost, self.config.limits.max_pixel_boost)
        fuser = Fuser(
            bundle,
            detectors,
            self.runtime(),
            precision=self.order.version.precision,
            restorer=restorer,
            skin=self.fuse.skin,
            pixel_boost=boost,
        )
        model = describe_makers(bundle.description.name, restorer)
        source, source_sha256 = self.encode_source(inputs, fuser)
        reference = self.embed_reference(inputs, fuser)
        task = FusionTask(
            self.film.target,
            self.find_suffix(),
            self.order.version.location,
            self.config.tracking_uri,
            [source],
            self.fuse.faces != "all",
            restorer=self.config.restorer,
            skin=self.fuse.skin,
            pixel_boost=boost,
            steady_colours=self.options["steady_colours"],
            **self.describe_output(mark=self.fuse.mark),
        )
        work = FusionWork(
            task,
            partial(self.choose, reference=reference, least=inputs.reference_similarity),
            {"faces": self.fuse.faces, "who": None if reference is None else hash_array(reference)},
            self.order.version.bundle,
        )
        return PreparedFilm(
            work,
            self.check_frames(FusionWorker(task, fuser), lambda plan: plan.faces),
            lambda made: describe_fusion(made, self.film.target.name, model),
            {"source": source_sha256},
            model,
            lambda made: int(made.plan.num_faces),
        )

    def encode_source(self, inputs: JobInputs, fuser: Fuser) -> tuple[FloatArray, str]:
        """Encode the source, if the consent policy permits it; return the sha256 of its picture, too.

        Raises: ImageRejected, ConsentRefused, UnknownIdentity; OSError.
        """
        sent: bytes | str | None = inputs.identity or inputs.source
        if inputs.source_uri is not None:
            reader = UriReader(self.config.jobs.allowed_uris, self.config.limits.max_body_bytes)
            sent = reader.read(inputs.source_uri, "source")
        assert sent is not None
        owner = self.order.folder.record.owner
        options = FuseOptions(**{**vars(self.fuse), "consent": inputs.consent})
        task = FuseTask((sent,), b"", self.order.version, options, float("inf"), owner)
        sources = SourceFaces(self.codec, build_policy(self.config.consent), open_store(self.config.identities))
        with name_picture("source"):
            encoded, hashes = sources.encode(task, fuser.preprocessor, Stopwatch())
        return encoded[0], hashes[0]

    def embed_reference(self, inputs: JobInputs, fuser: Fuser) -> FloatArray | None:
        """Compute the identity of the reference, float32 [E]; None if there is none.

        Raises: ImageRejected; also if a person is to be chosen, and the model compares no faces.
        """
        preprocessor = fuser.preprocessor
        if self.fuse.faces != "all" and not preprocessor.compares_faces:
            raise ImageRejected(
                "no_identity_encoder", "this model takes pictures as sources and compares no faces; send faces=all"
            )
        if inputs.reference is None:
            return None
        with name_picture("reference"):
            image = self.codec.decode(inputs.reference)
            return preprocessor.embed_face(image, find_largest_face(preprocessor.detector, image, "reference"))

    def choose(
        self, tracks: Sequence[Track], *, reference: FloatArray | None, least: float | None
    ) -> Mapping[int, int]:
        """Choose the tracks that get the source.

        Raises: ImageRejected.
        """
        if reference is not None and least is not None:
            return choose_similar(tracks, [reference], least, ["the reference"])
        return choose_all(tracks) if self.fuse.faces == "all" else choose_main(tracks)


def hash_array(array: FloatArray) -> str:
    """Return the sha256 of an array, hexadecimal."""
    return hashlib.sha256(array.tobytes()).hexdigest()
