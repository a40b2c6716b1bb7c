"""An exported ONNX file does not depend on the machine: equal modules give equal bytes, without source paths."""

import importlib.util
from pathlib import Path

import onnx
import pytest
import torch
from torch import nn

from fusionray.export.export import shorten_paths, write_onnx
from fusionray.export.onnx_graphs import remove_metadata

CHECKOUT = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(3, 4, 3)

    def forward(self, image):
        return torch.where(image.mean() > 0, self.layer(image), -self.layer(image))
"""


def test_equal_modules_of_two_checkouts_give_equal_files_without_paths(tmp_path: Path) -> None:
    files = [export_from(tmp_path / name) for name in ("one", "another")]
    assert files[0] == files[1]
    assert str(tmp_path).encode() not in files[0]
    assert b".py" not in files[0]


def export_from(checkout: Path) -> bytes:
    checkout.mkdir()
    (checkout / "net.py").write_text(CHECKOUT)
    spec = importlib.util.spec_from_file_location("net", checkout / "net.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    torch.manual_seed(0)
    net: nn.Module = module.Net()
    write_onnx(net, (torch.zeros(2, 3, 8, 8),), checkout / "net.onnx", inputs=["image"], outputs=["features"])
    return (checkout / "net.onnx").read_bytes()


def test_metadata_of_subgraphs_and_functions_is_removed() -> None:
    def trace(node: onnx.NodeProto) -> onnx.NodeProto:
        node.metadata_props.add(key="pkg.torch.onnx.stack_trace", value="/home/me/net.py")
        node.doc_string = "/home/me/net.py"
        return node

    branch = onnx.helper.make_graph([trace(onnx.helper.make_node("Neg", ["x"], ["y"]))], "branch", [], [])
    node = trace(onnx.helper.make_node("If", ["condition"], ["z"], then_branch=branch, else_branch=branch))
    nodes, opsets = [trace(onnx.helper.make_node("Abs", ["a"], ["b"]))], [onnx.helper.make_opsetid("", 20)]
    function = onnx.helper.make_function("mine", "twice", ["a"], ["b"], nodes, opsets)
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "graph", [], []), functions=[function])
    model.metadata_props.add(key="made", value="/home/me/net.py")
    remove_metadata(model)
    assert b"/home/me" not in model.SerializeToString()


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ("/home/ann/runs/encoder", "encoder"),
        ("~/shards", "shards"),
        ("sqlite:////home/ann/mlflow.db", "sqlite:///mlflow.db"),
        ("synthetic://people=24,images=6", "synthetic://people=24,images=6"),
        ("https://mlflow.example.org/a", "https://mlflow.example.org/a"),
        ("models:/faces@prod", "models:/faces@prod"),
        ("postgresql://mlflow:se/cret@db:5432/mlflow", "postgresql://db:5432/mlflow"),
        ("postgresql://mlflow:s3cr@t@db/mlflow", "postgresql://db/mlflow"),
        ("http://ann@host/a@b", "http://host/a@b"),
        (["/a/b", {"c": "/d"}, 3, None], ["b", {"c": "d"}, 3, None]),
    ],
)
def test_a_lineage_names_no_folder_of_the_machine(value: object, kept: object) -> None:
    assert shorten_paths({"key": value}) == {"key": kept}
