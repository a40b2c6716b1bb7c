"""Guards of the house: what may lie where, and who may import whom."""

from __future__ import annotations

import ast
import json
import sys
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from fusionray.recipes.registry import BUILT_IN
from tests.support.child_python import ROOT, run_python

PACKAGE = ROOT / "platform" / "fusionray"
OUTSIDE = ("jobs", "serve", "cluster", "tests")


def modules_under(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.py") if "__pycache__" not in path.parts)


@cache
def imported_names(path: Path) -> tuple[str, ...]:
    """List every module that a file imports, at its top or inside a function."""
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: write imports from the root"
            names += [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
    return tuple(names)


def is_of(name: str, forbidden: str) -> bool:
    return name == forbidden or name.startswith(f"{forbidden}.")


def test_the_source_root_and_the_folders_beside_it_are_no_packages() -> None:
    # platform/__init__.py would shadow the stdlib module, and every Ray worker would die in `import ray`.
    found = [
        ROOT / "platform" / "__init__.py",
        *(path for name in OUTSIDE for path in (ROOT / name).rglob("__init__.py")),
    ]
    assert [path for path in found if path.exists()] == []


def test_every_room_of_the_package_is_a_package() -> None:
    rooms = {path.parent for path in modules_under(PACKAGE)}
    assert [room for room in rooms if not (room / "__init__.py").is_file()] == []


@pytest.mark.parametrize("path", ["", "platform"])
def test_import_platform_from_the_root_gives_the_standard_module(path: str) -> None:
    stdlib = run_python("-c", "import os; print(os.__file__)", PYTHONPATH=path)
    found = run_python("-c", "import platform; platform.system(); print(platform.__file__)", PYTHONPATH=path)
    assert Path(found).parent == Path(stdlib).parent


def test_there_is_no_folder_tests_platform() -> None:
    assert not (ROOT / "tests" / "platform").exists()


def test_no_script_hides_a_module_that_others_import() -> None:
    # `python jobs/queue.py` puts jobs/ first on the path: `import queue` inside Ray would find the script.
    taken = set(sys.stdlib_module_names) | set(packages_distributions())
    scripts = [path for name in OUTSIDE for path in modules_under(ROOT / name)]
    assert len(scripts) > 10
    assert [path for path in scripts if path.stem in taken] == []


def test_the_package_imports_nothing_from_outside_itself() -> None:
    faults = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in modules_under(PACKAGE)
        for name in imported_names(path)
        if any(is_of(name, outside) for outside in OUTSIDE)
    ]
    assert faults == []


# What a room may not import, as folder or file under the package: one rule each.
TRAINING_SIDE = ("training", "tuning", "evaluation", "export", "checkpoint")
CLUSTER = ["ray", "mlflow", "fusionray.ray_cluster", "fusionray.tracking"]
TOP = ["fusionray.cli", "fusionray.commands", "fusionray.serving", "fusionray.benchmarks"]
FORBIDDEN = {
    "faces": [*CLUSTER, *TOP, "torch", *(f"fusionray.{room}" for room in ("data", "nets", "recipes", *TRAINING_SIDE))],
    "nets": [*CLUSTER, *TOP, *(f"fusionray.{room}" for room in ("data", "faces", "recipes", *TRAINING_SIDE))],
    "data": [*TOP, *(f"fusionray.{room}" for room in ("nets", "metrics", "recipes", *TRAINING_SIDE))],
    "metrics": [*CLUSTER, *TOP, *(f"fusionray.{room}" for room in ("recipes", *TRAINING_SIDE))],
    "metrics/verification.py": ["torch", "fusionray"],
    "data/synthetic": [*CLUSTER, *TOP, *(f"fusionray.{room}" for room in ("nets", "recipes", *TRAINING_SIDE))],
    **{
        f"data/synthetic/{lower}": [f"fusionray.data.synthetic.{upper}" for upper in uppers]
        for lower, uppers in {
            "parameters": ("graphics", "shapes", "layers", "scene", "renderer", "true_fusion"),
            "graphics": ("shapes", "layers", "scene", "renderer", "true_fusion"),
            "shapes": ("layers", "scene", "renderer", "true_fusion"),
            "layers": ("scene", "renderer", "true_fusion"),
        }.items()
    },
    "data/pairs.py": [*CLUSTER, *TOP, *(f"fusionray.{room}" for room in ("nets", "recipes", *TRAINING_SIDE))],
    "hardware": [*CLUSTER, *TOP, *(f"fusionray.{room}" for room in ("data", "nets", "recipes", *TRAINING_SIDE))],
    "storage": [*CLUSTER, *TOP, *(f"fusionray.{room}" for room in ("data", "nets", "recipes", *TRAINING_SIDE))],
    "bundle": ["ray", "torch", *TOP, *(f"fusionray.{room}" for room in ("data", "recipes", "runtime", *TRAINING_SIDE))],
    "runtime": ["ray", "mlflow", "torch", *TOP, *(f"fusionray.{room}" for room in ("nets", "recipes", *TRAINING_SIDE))],
    "safety": ["ray", "mlflow", "torch", *TOP, *(f"fusionray.{room}" for room in ("nets", "recipes", *TRAINING_SIDE))],
    "recipes": [
        *CLUSTER,
        *TOP,
        "pyarrow",
        *(f"fusionray.{room}" for room in TRAINING_SIDE if room != "checkpoint"),
    ],
    "checkpoint": [
        *CLUSTER,
        *TOP,
        *(f"fusionray.{room}" for room in ("recipes", "training", "tuning", "evaluation", "export")),
    ],
    "training": [*TOP, *(f"fusionray.{room}" for room in ("tuning", "evaluation", "export"))],
    "checkpoint/info.py": ["torch"],
    "training/engine": [*CLUSTER, *TOP, "fusionray.data"],
    "training/schedule.py": ["torch"],
    "evaluation": ["ray"],
    # Of the package, pages and charts know how a file is written, and nothing else.
    "reporting": [
        *CLUSTER,
        *TOP,
        "torch",
        *(f"fusionray.{room}" for room in ("data", "nets", "recipes", *TRAINING_SIDE)),
    ],
    **{
        f"tuning/{name}.py": ["ray", "mlflow"]
        for name in ("charts", "config", "importance", "plan", "population", "records", "report", "sampler", "space")
    },
    "export": [*TOP, *(f"fusionray.{room}" for room in ("training", "tuning", "evaluation"))],
    "client": [
        *CLUSTER,
        *TOP,
        "torch",
        "numpy",
        "pydantic",
        *(
            f"fusionray.{room}"
            for room in ("data", "faces", "nets", "runtime", "safety", "storage", "recipes", *TRAINING_SIDE)
        ),
    ],
    "serving": ["torch", "fusionray.nets", *(f"fusionray.{room}" for room in ("recipes", *TRAINING_SIDE))],
}


@pytest.mark.parametrize("place", sorted(FORBIDDEN))
def test_imports_point_one_way(place: str) -> None:
    path = PACKAGE / place
    files = [path] if path.suffix else modules_under(path)
    assert files
    faults = [
        f"{file.relative_to(ROOT)} imports {name}"
        for file in files
        for name in imported_names(file)
        for forbidden in FORBIDDEN[place]
        if is_of(name, forbidden)
    ]
    assert faults == []


def room_of(path: Path, house: Path = PACKAGE) -> str:
    """Name the package, or the module, right under `house` that a file belongs to."""
    return path.relative_to(house).parts[0].removesuffix(".py")


def list_houses() -> list[Path]:
    """List the packages that contain packages."""
    return sorted({path.parent.parent for path in PACKAGE.rglob("*/__init__.py")})


def find_circle(edges: dict[str, set[str]]) -> list[str]:
    """Find rooms or modules that import each other in a circle; nothing if there are none."""
    remaining = {room: set(used) for room, used in edges.items()}
    while True:
        # A room that imports no other one is in no circle, and after it neither is whoever imports only it.
        free = {room for room, used in remaining.items() if not used & remaining.keys()}
        if not free:
            return sorted(remaining)
        remaining = {room: used for room, used in remaining.items() if room not in free}


def list_edges(house: Path) -> dict[str, set[str]]:
    """List, for each room and module right under `house`, the others there that it imports."""
    files = modules_under(house)
    prefix = f"{module_name(house)}."
    rooms = {room_of(path, house) for path in files}
    edges: dict[str, set[str]] = {room: set() for room in rooms}
    for path in files:
        used = {name.removeprefix(prefix).split(".")[0] for name in imported_names(path) if name.startswith(prefix)}
        edges[room_of(path, house)] |= (used & rooms) - {room_of(path, house)}
    return edges


def test_rooms_import_each_other_in_no_circle() -> None:
    houses = list_houses()
    assert {PACKAGE, PACKAGE / "serving", PACKAGE / "training" / "engine"} <= set(houses)
    assert {module_name(house): circle for house in houses if (circle := find_circle(list_edges(house)))} == {}
    edges = list_edges(PACKAGE)
    assert find_circle({**edges, "metrics": edges["metrics"] | {"evaluation"}}) != []


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


def test_modules_import_each_other_in_no_circle() -> None:
    # Also inside functions, and for annotations alone: such a circle hides which of the two is the lower one.
    edges = {module_name(path): set(imported_names(path)) for path in modules_under(PACKAGE)}
    edges = {name: (used & edges.keys()) - {name} for name, used in edges.items()}
    assert find_circle(edges) == []


def recipe_modules() -> list[Path]:
    """List the modules of concrete recipes: those in a family's room, or that are named as a built-in family is."""
    places = [name.removeprefix("fusionray.recipes.").split(".") for name in BUILT_IN]
    rooms = {place[0] for place in places if len(place) > 1}
    stems = tuple(place[0].removesuffix("_family") for place in places if len(place) == 1)
    assert set(stems) == {"attributes", "identity"}
    assert rooms == {"face_fusion", "face_parsing", "style_transfer"}
    return [
        path
        for path in modules_under(PACKAGE / "recipes")
        if path.parent.name in rooms or (path.parent.name == "recipes" and path.stem.startswith(stems))
    ]


def test_only_recipes_know_which_recipe_it_is() -> None:
    concrete = recipe_modules()
    modules = [module_name(path) for path in concrete]
    classes = {
        node.name
        for path in concrete
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    }
    assert {
        "FaceFusionRecipe",
        "FaceFusionConfig",
        "IdentityRecipe",
        "AttributesRecipeConfig",
        "StyleTransferConfig",
    } <= classes
    others = [path for path in modules_under(PACKAGE) if room_of(path) != "recipes"]
    faults = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in others
        for name in imported_names(path)
        if any(is_of(name, module) for module in modules)
    ]
    faults += [
        f"{path.relative_to(ROOT)}:{node.lineno} names {node.id}"
        for path in others
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Name) and node.id in classes
    ]
    assert faults == []


def test_metrics_load_neither_cluster_nor_tracker() -> None:
    metrics = [f"fusionray.metrics.{path.stem}" for path in modules_under(PACKAGE / "metrics")]
    assert len(metrics) > 5
    names = [name.removesuffix(".__init__") for name in metrics]
    code = (
        f"import json, sys, {', '.join(names)}\n"
        "print(json.dumps([name for name in ('ray', 'mlflow', 'onnxruntime') if name in sys.modules]))"
    )
    assert json.loads(run_python("-c", code)) == []


def test_recipes_use_of_the_data_only_the_synthetic_world() -> None:
    names = {name for file in modules_under(PACKAGE / "recipes") for name in imported_names(file)}
    used = {name for name in names if is_of(name, "fusionray.data") and not is_of(name, "fusionray.data.synthetic")}
    assert used <= {"fusionray.data"}


def test_what_runs_without_a_cluster_does_not_load_one() -> None:
    code = (
        "import json, sys\n"
        "import fusionray.recipes.face_fusion.recipe, fusionray.training.engine.engine, fusionray.runtime.fuser\n"
        "import fusionray.metrics.verification, fusionray.training.config, fusionray.data.pairs\n"
        "print(json.dumps([name for name in ('ray', 'mlflow', 'fastapi') if name in sys.modules]))"
    )
    assert json.loads(run_python("-c", code)) == []


@pytest.mark.parametrize("module", ["runtime.fuser", "data.shard_readers", "ray_cluster.progress"])
def test_processes_that_need_no_torch_do_not_load_it(module: str) -> None:
    code = f"import sys, fusionray.{module}; print('torch' in sys.modules)"
    assert run_python("-c", code).strip() == "False"


# What httpx needs, and what it also loads where it is installed (for its own command line).
CLIENT_LIBRARIES = {"anyio", "certifi", "click", "h11", "httpcore", "httpx", "idna", "pygments", "rich"}


def test_the_client_loads_httpx_alone_and_soon() -> None:
    code = (
        "import json, sys, time\n"
        "before, started = set(sys.modules), time.process_time()\n"
        "import fusionray.client\n"
        "seconds = time.process_time() - started\n"
        "print(json.dumps([seconds, sorted({name.partition('.')[0] for name in set(sys.modules) - before})]))"
    )
    runs = [json.loads(run_python("-c", code)) for _ in range(3)]
    assert set(runs[0][1]) - sys.stdlib_module_names <= CLIENT_LIBRARIES | {"fusionray"}
    # Other processes of the machine can only add to it.
    assert min(seconds for seconds, _ in runs) < 0.3


def test_importing_the_command_line_starts_nothing(tmp_path: Path) -> None:
    code = (
        "import os, threading, logging\n"
        "before = dict(os.environ)\n"
        f"os.chdir({str(tmp_path)!r})\n"
        "import fusionray.cli\n"
        "assert threading.active_count() == 1, threading.enumerate()\n"
        "assert dict(os.environ) == before\n"
        "assert not logging.getLogger('fusionray').handlers\n"
    )
    run_python("-c", code)
    assert list(tmp_path.iterdir()) == []
