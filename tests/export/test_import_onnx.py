from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fusionray.bundle.bundle import Bundle, read_bundle
from fusionray.cli import main
from fusionray.errors import ConfigInvalid, FusionRayError, ModelRejected
from fusionray.export.import_layouts import load_import_config
from fusionray.export.import_onnx import import_model
from fusionray.export.onnx_graphs import read_imported_model
from fusionray.export.published_layouts import list_layouts
from fusionray.faces.align import fit_similarity, load_template
from fusionray.faces.detectors.factory import build_detector
from fusionray.faces.image_files.decode import encode_image
from fusionray.runtime.config import RuntimeConfig
from fusionray.runtime.crop_fuser import CropFuser
from fusionray.runtime.engines.providers import CPU
from fusionray.runtime.face_preprocessor import FacePreprocessor
from fusionray.runtime.fuser import Fuser
from fusionray.runtime.source_encoding import open_source_encoder
from tests.support.outside_models import build_encoder, build_swapper, embed, save
from tests.support.pictures import draw_person

ON_CPU = RuntimeConfig(providers=(CPU,), threads=1)
MATRIX = np.random.default_rng(5).standard_normal((512, 512)).astype(np.float32)
# What options say of a model whose graph says nothing but shapes.
PLAIN = ("licence=MIT", "template=arcface_128", "target.minimum=0.0", "target.maximum=1.0")


def import_bundle(
    folder: Path, generator: bytes, *options: str, like: str | None = None, encoder: bytes | None = None
) -> Bundle:
    paths = save(folder, swapper=generator, arcface=encoder or build_encoder())
    places = [f"generator={paths['swapper']}", f"output={folder / 'bundle'}"]
    if "picture" not in options:
        places.append(f"identity={paths['arcface']}")
    overrides = [*places, *(item for item in options if item != "picture")]
    return import_model(load_import_config(like=like, overrides=overrides))


def draw(count: int, size: int, seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(60, 180, (count, size, size, 3), dtype=np.uint8)


def fuse(bundle: Bundle, faces: NDArray[np.uint8], targets: NDArray[np.uint8]) -> Any:
    encoder = open_source_encoder(bundle, ON_CPU)
    assert encoder.size == faces.shape[1]
    return CropFuser(bundle, ON_CPU, max_batch=4).fuse(encoder.encode_crops(faces), targets)


def tinted(targets: NDArray[np.uint8], tints_N3: NDArray[np.floating], span: float | list[float]) -> NDArray[np.uint8]:
    """Add half of a source's tint per channel to pictures, in a model whose white is `span` above its black."""
    shift = 0.5 * np.asarray(tints_N3, np.float64) * 255.0 / np.asarray(span)
    return np.rint(np.clip(targets + shift[:, None, None], 0, 255)).astype(np.uint8)


def unit(rows: NDArray[np.floating]) -> NDArray[np.floating]:
    return np.asarray(rows / np.linalg.norm(rows, axis=-1, keepdims=True))


def embeddings(faces: NDArray[np.uint8]) -> NDArray[np.floating]:
    return np.stack([embed(face) for face in faces])


@pytest.mark.parametrize("batch", ["N", 1, 2])
@pytest.mark.parametrize("size", [128, 256])
def test_a_swapper_of_unit_embeddings_runs_at_any_batch(tmp_path: Path, batch: str | int, size: int) -> None:
    swapper = build_swapper([batch, 512], [batch, 3, size, size], names=("emb", "img", "421"))
    bundle = import_bundle(tmp_path, swapper, *PLAIN)
    assert bundle.description.size == size
    assert bundle.description.tensors["generator.onnx"]["target"].shape[0] == batch
    faces, targets = draw(5, 112), draw(5, size, 1)
    fused = fuse(bundle, faces, targets)
    assert np.abs(fused.crops.astype(int) - tinted(targets, unit(embeddings(faces))[:, :3], 1.0)).max() <= 1
    assert np.array_equal(fused.masks, np.ones((5, size, size), np.float32))


def test_a_graph_with_an_undeclared_batch_of_one_runs_face_by_face(tmp_path: Path) -> None:
    bundle = import_bundle(tmp_path, build_swapper(["N", 512], ["N", 3, 64, 64], frozen=True), *PLAIN)
    assert bundle.description.tensors["generator.onnx"]["target"].shape[0] == 1
    faces, targets = draw(3, 112), draw(3, 64, 1)
    assert (
        np.abs(
            fuse(bundle, faces, targets).crops.astype(int) - tinted(targets, unit(embeddings(faces))[:, :3], 1.0)
        ).max()
        <= 1
    )


def test_an_unused_matrix_of_a_swapper_is_applied_to_the_embedding(tmp_path: Path) -> None:
    swapper = build_swapper([1, 512], [1, 3, 128, 128], unused=MATRIX)
    bundle = import_bundle(tmp_path, swapper, "licence=x", like="inswapper_128_insightface")
    assert bundle.description.embedding.matrix in bundle.description.files
    faces, targets = draw(3, 112), draw(3, 128, 1)
    wanted = unit(unit(embeddings(faces)) @ MATRIX)
    assert np.allclose(open_source_encoder(bundle, ON_CPU).encode_crops(faces), wanted, atol=1e-5)
    assert np.abs(fuse(bundle, faces, targets).crops.astype(int) - tinted(targets, wanted[:, :3], 1.0)).max() <= 1
    plain = import_bundle(tmp_path, swapper, "licence=x", "embedding.matrix=none", like="inswapper_128")
    assert np.allclose(open_source_encoder(plain, ON_CPU).encode_crops(faces), unit(embeddings(faces)), atol=1e-5)


@pytest.mark.parametrize("name", ["inswapper_128", "inswapper_128_fp16"])
def test_inswapper_takes_the_product_with_its_matrix_as_it_comes_in_facefusion(tmp_path: Path, name: str) -> None:
    bundle = import_bundle(tmp_path, build_swapper([1, 512], [1, 3, 128, 128], unused=MATRIX), "licence=x", like=name)
    faces = draw(3, 112)
    sources = open_source_encoder(bundle, ON_CPU).encode_crops(faces)
    assert np.allclose(sources, unit(embeddings(faces)) @ MATRIX, rtol=1e-3, atol=1e-3)
    assert np.linalg.norm(sources, axis=1).min() > 2


def test_alphaface_takes_the_embedding_as_the_encoder_gives_it(tmp_path: Path) -> None:
    swapper = build_swapper([1, 512], [1, 3, 256, 256])
    bundle = import_bundle(tmp_path, swapper, "licence=x", like="alphaface_256")
    faces = draw(2, 112)
    assert np.allclose(open_source_encoder(bundle, ON_CPU).encode_crops(faces), embeddings(faces), rtol=1e-3, atol=0.05)


def test_crops_of_a_model_of_facefusion_are_cut_as_facefusion_cuts_them(tmp_path: Path) -> None:
    swapper = build_swapper([1, 512], [1, 3, 256, 256])
    picture = draw_person(2)
    detector = build_detector("default")
    face = detector.detect(picture)[0]
    bundle = import_bundle(tmp_path, swapper, "licence=x", like="hyperswap_1a_256")
    assert read_bundle(bundle.folder).description.template_anchor == "first_pixel"
    preprocessor = FacePreprocessor(bundle, detector, ON_CPU)
    # FaceFusion multiplies the fractions of its templates, pixels of 128 divided by 128, by the size of the crop.
    wanted = fit_similarity(face.landmarks, load_template("arcface_128").points(128) * 2.0)
    assert preprocessor.cut_crops(picture, [face]).matrices[0] == pytest.approx(wanted, abs=1e-3)
    ours = import_bundle(tmp_path, swapper, "licence=x", "template_anchor=edge", like="hyperswap_1a_256")
    assert "template_anchor" not in json.loads((ours.folder / "bundle.json").read_text())
    (matrix,) = FacePreprocessor(ours, detector, ON_CPU).cut_crops(picture, [face]).matrices
    # Half a pixel of 256, a quarter of a pixel of 128.
    assert (matrix - wanted)[:, 2] == pytest.approx([0.5, 0.5], abs=1e-3)


def test_help_of_import_names_every_published_layout(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["import", "--help"])
    words = capsys.readouterr().out.replace(",", " ").split()
    known = {f"hyperswap_1{letter}_256" for letter in "abc"} | {f"ghost_{number}_256" for number in (1, 2, 3)}
    known |= {"hififace_unofficial_256", "inswapper_128", "inswapper_128_fp16", "inswapper_128_insightface"}
    assert known <= set(list_layouts()) <= set(words)


def test_a_changed_matrix_is_refused(tmp_path: Path) -> None:
    bundle = import_bundle(tmp_path, build_swapper([1, 512], [1, 3, 128, 128], unused=MATRIX), *PLAIN)
    path = bundle.folder / str(bundle.description.embedding.matrix)
    path.write_bytes(path.read_bytes()[:-4] + b"\0\0\0\0")
    with pytest.raises(FusionRayError, match=r"source_matrix\.npy: sha256"):
        read_bundle(bundle.folder)


def test_a_converter_converts_raw_embeddings(tmp_path: Path) -> None:
    from onnx import helper

    from tests.support.tiny_bundle import serialise

    node = helper.make_node("MatMul", ["input", "map"], ["converted"])
    converter = serialise([node], {"map": MATRIX}, {"input": [1, 512]}, {"converted": [1, 512]})
    path = save(tmp_path, converter=converter)["converter"]
    swapper = build_swapper(["N", 512], ["N", 3, 256, 256])
    faces = draw(3, 112)
    bundle = import_bundle(tmp_path, swapper, "licence=x", f"embedding.converter={path}", like="ghost_2_256")
    raw = embeddings(faces) @ MATRIX
    assert np.allclose(open_source_encoder(bundle, ON_CPU).encode_crops(faces), raw, rtol=1e-3, atol=0.05)
    bundle = import_bundle(
        tmp_path, swapper, "licence=x", f"embedding.converter={path}", like="hififace_unofficial_256"
    )
    assert np.allclose(open_source_encoder(bundle, ON_CPU).encode_crops(faces), unit(raw), atol=1e-5)


def test_mean_and_deviation_per_channel_and_another_output_range(tmp_path: Path) -> None:
    bundle = import_bundle(tmp_path, build_swapper([1, 512], [1, 3, 256, 256]), "licence=x", like="simswap_256")
    faces, targets = draw(2, 112), draw(2, 256, 1)
    mean, deviation = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    seen = (targets / 255.0 - mean) / deviation + 0.5 * unit(embeddings(faces))[:, None, None, :3]
    wanted = np.rint(np.clip(seen, 0, 1) * 255)
    assert 0.05 < (wanted == 0).mean() < 0.9
    assert np.abs(fuse(bundle, faces, targets).crops - wanted).max() <= 1


def test_a_source_picture_with_its_own_range_and_a_target_of_512(tmp_path: Path) -> None:
    swapper = build_swapper([1, 3, 112, 112], [1, 3, 512, 512], names=("a", "target", "b"))
    options = ("picture", "source_template=arcface_112", "source.minimum=0", "source.maximum=2")
    bundle = import_bundle(tmp_path, swapper, *PLAIN[:2], "target.minimum=-1", "target.maximum=1", *options)
    assert not (bundle.folder / "identity.onnx").exists()
    assert bundle.source_shape == (3, 112, 112)
    faces, targets = draw(2, 112), draw(2, 512, 1)
    means = faces.reshape(2, -1, 3).mean(axis=1) / 255.0 * 2
    assert np.abs(fuse(bundle, faces, targets).crops.astype(int) - tinted(targets, means, 2.0)).max() <= 1


def test_a_swapper_with_a_source_picture_fuses_pictures(tmp_path: Path) -> None:
    swapper = build_swapper([1, 3, 112, 112], [1, 3, 256, 256])
    bundle = import_bundle(tmp_path, swapper, "licence=x", "picture", like="blendswap_256")
    fuser = Fuser(bundle, build_detector("default"), ON_CPU)
    fuser.warm_up()
    source, target = draw_person(1), draw_person(2)
    person = fuser.encode_source(source)
    assert person.shape == bundle.source_shape
    assert np.array_equal(fuser.fuse(source, target).image, fuser.fuse_source(person, target).image)
    assert not np.array_equal(fuser.fuse(source, target).image, target)
    assert not fuser.preprocessor.compares_faces


@pytest.mark.filterwarnings("ignore:outputs are signed with a generated TEST KEY:RuntimeWarning")
def test_a_swapper_that_compares_no_faces_changes_all_faces_of_a_video_or_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    swapper = build_swapper([1, 3, 112, 112], [1, 3, 256, 256])
    bundle = import_bundle(tmp_path, swapper, "licence=x", "picture", like="blendswap_256")
    (tmp_path / "a.png").write_bytes(encode_image(draw_person(1)))
    video = [str(tmp_path / name) for name in ("a.png", "talk.mp4", "fused.mp4")]
    assert main(["fuse-video", *video, "--bundle", str(bundle.folder)]) == 1
    assert "compares no faces; use --faces all" in capsys.readouterr().err
    assert main(["fuse-video", *video, "--bundle", str(bundle.folder), "--faces", "all"]) == 1
    assert "talk.mp4: there is no such file" in capsys.readouterr().err


def test_a_kind_of_source_that_the_graph_contradicts_is_refused(tmp_path: Path) -> None:
    swapper = build_swapper([1, 3, 112, 112], [1, 3, 256, 256])
    with pytest.raises(ModelRejected, match="needs no encoder; leave --identity out"):
        import_bundle(tmp_path, swapper, "licence=x", like="blendswap_256")
    with pytest.raises(ModelRejected, match="a source that is picture, not embedding"):
        import_bundle(tmp_path, swapper, "licence=x", "picture", "source_kind=embedding", like="blendswap_256")


def test_bgr_channel_order(tmp_path: Path) -> None:
    swapper = build_swapper(["N", 512], ["N", 3, 64, 64])
    bundle = import_bundle(
        tmp_path, swapper, *PLAIN, "target.order=bgr", "produced={minimum: 0, maximum: 1, order: bgr}"
    )
    faces, targets = draw(2, 112), draw(2, 64, 1)
    wanted = tinted(targets, unit(embeddings(faces))[:, 2::-1], 1.0)
    assert np.abs(fuse(bundle, faces, targets).crops.astype(int) - wanted).max() <= 1
    mixed = import_bundle(tmp_path, swapper, *PLAIN, "produced={minimum: 0, maximum: 1, order: bgr}")
    wanted = tinted(targets, unit(embeddings(faces))[:, :3], 1.0)[..., ::-1]
    assert np.abs(fuse(mixed, faces, targets).crops.astype(int) - wanted).max() <= 1


def test_a_mask_with_its_own_range(tmp_path: Path) -> None:
    swapper = build_swapper(["N", 512], ["N", 3, 64, 64], mask="alpha")
    faces, targets = draw(2, 112), draw(2, 64, 1)
    bundle = import_bundle(tmp_path, swapper, *PLAIN, "mask=[0, 20]")
    assert fuse(bundle, faces, targets).masks == pytest.approx(0.25)


def test_an_encoder_that_normalizes_its_input_gets_raw_pixels(tmp_path: Path) -> None:
    faces, swapper = draw(3, 112), build_swapper(["N", 512], ["N", 3, 64, 64])
    for encoder in (build_encoder(), build_encoder(own_levels=True), build_encoder(batch=1)):
        bundle = import_bundle(tmp_path, swapper, *PLAIN, encoder=encoder)
        assert np.allclose(open_source_encoder(bundle, ON_CPU).encode_crops(faces), unit(embeddings(faces)), atol=1e-4)


def test_a_dynamic_size_needs_an_option(tmp_path: Path) -> None:
    swapper = build_swapper(["N", 512], ["N", 3, "H", "W"])
    with pytest.raises(ModelRejected, match="size of 'target' open; set it with --size"):
        import_bundle(tmp_path, swapper, *PLAIN)
    assert import_bundle(tmp_path, swapper, *PLAIN, "size=96").description.size == 96


@pytest.mark.parametrize(
    ("left_out", "option"), [("licence", "--licence"), ("template", "--template"), ("target", "target.minimum")]
)
def test_the_error_names_the_option_of_a_missing_value(tmp_path: Path, left_out: str, option: str) -> None:
    options = [item for item in PLAIN if not item.startswith(left_out)]
    with pytest.raises(ModelRejected, match=option):
        import_bundle(tmp_path, build_swapper(["N", 512], ["N", 3, 64, 64]), *options)
    assert not (tmp_path / "bundle").exists()


def test_two_inputs_of_one_shape_need_telling_names_or_an_option(tmp_path: Path) -> None:
    def build(names: tuple[str, str, str]) -> bytes:
        return build_swapper([1, 3, 256, 256], [1, 3, 256, 256], names=names)

    bundle = import_bundle(tmp_path, build(("x", "my_target", "y")), "licence=x", "picture", like="uniface_256")
    assert bundle.port("generator.onnx", "source") == "x"
    with pytest.raises(ModelRejected, match="which of x and z is the source"):
        import_bundle(tmp_path, build(("x", "z", "y")), "licence=x", "picture", like="uniface_256")
    options = ("licence=x", "picture", "ports.source=x")
    assert (
        import_bundle(tmp_path, build(("x", "z", "y")), *options, like="uniface_256").port("generator.onnx", "target")
        == "z"
    )


def test_the_lineage_names_where_the_files_came_from(tmp_path: Path) -> None:
    swapper = build_swapper(["N", 512], ["N", 3, 64, 64])
    lineage = import_bundle(tmp_path, swapper, *PLAIN).description.lineage
    digests = {
        "swapper.onnx": hashlib.sha256(swapper).hexdigest(),
        "arcface.onnx": hashlib.sha256(build_encoder()).hexdigest(),
    }
    assert lineage.imported == digests
    assert str(tmp_path) not in json.dumps(lineage.model_dump())


def test_files_that_are_not_plain_onnx_are_refused(tmp_path: Path) -> None:
    import onnx

    good = build_swapper(["N", 512], ["N", 3, 64, 64])
    with pytest.raises(ModelRejected, match=r"not part of ONNX \(evil\.Add\)"):
        import_bundle(tmp_path, build_swapper(["N", 512], ["N", 3, 64, 64], domain="evil"), *PLAIN)
    with pytest.raises(ModelRejected, match="is not an ONNX model"):
        import_bundle(tmp_path, b"\xff" * 100, *PLAIN)
    with pytest.raises(ModelRejected, match=r"is not (valid ONNX|an ONNX model)"):
        import_bundle(tmp_path, b"", *PLAIN)
    path = Path(save(tmp_path, large=good)["large"])
    with pytest.raises(ModelRejected, match="over the limit of 100;"):
        read_imported_model(str(path), max_bytes=100)
    model = onnx.load_model_from_string(good)
    entry = model.graph.initializer[0]
    entry.data_location = onnx.TensorProto.EXTERNAL
    entry.external_data.add(key="location", value="../../etc/passwd")
    entry.ClearField("raw_data")
    with pytest.raises(ModelRejected, match=r"weights in other files \(\.\./\.\./etc/passwd\)"):
        import_bundle(tmp_path, model.SerializeToString(), *PLAIN)
    assert not (tmp_path / "bundle").exists()


def test_an_encoder_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FusionRayError, match=r"arcface\.onnx: gives 512 values and .*swapper\.onnx takes 256"):
        import_bundle(tmp_path, build_swapper(["N", 256], ["N", 3, 64, 64]), *PLAIN, "embedding.matrix=none")
    with pytest.raises(ModelRejected, match="has 2 inputs"):
        import_bundle(
            tmp_path,
            build_swapper(["N", 512], ["N", 3, 64, 64]),
            *PLAIN,
            encoder=build_swapper([1, 512], [1, 3, 64, 64]),
        )


@pytest.mark.parametrize("name", list_layouts())
def test_every_layout_can_be_imported(tmp_path: Path, name: str) -> None:
    tree = load_import_config(like=name, overrides=["generator=a", "output=b"])
    assert tree.size is not None
    load_template(str(tree.template))
    source: list[str | int] = [1, 512]
    if tree.source_kind == "picture":
        source = [1, 3, int(tree.source_size or 0), int(tree.source_size or 0)]
    swapper = build_swapper(source, [1, 3, tree.size, tree.size])
    options = ("picture",) if tree.source_kind == "picture" else ()
    assert import_bundle(tmp_path, swapper, "licence=x", *options, like=name).description.size == tree.size


def test_an_unknown_layout_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigInvalid, match="--like nothing: not known; there are alphaface_256"):
        load_import_config(like="nothing")


def test_the_command_imports_and_names_a_missing_option_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = save(tmp_path, swapper=build_swapper([1, 512], [1, 3, 128, 128], unused=MATRIX), arcface=build_encoder())
    command = ["import", paths["swapper"], "--identity", paths["arcface"], "--output", str(tmp_path / "bundle")]
    assert main([*command, "--like", "inswapper_128"]) == 1
    assert capsys.readouterr().err.count("\n") == 1
    assert main([*command, "--like", "inswapper_128", "--licence", "Non-Commercial", "--name", "1e3"]) == 0
    assert "128 px at arcface_128, batch 1" in capsys.readouterr().out
    assert read_bundle(tmp_path / "bundle").description.name == "1e3"
