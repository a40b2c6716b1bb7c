"""Reading the tensors of a checkpoint into any number of processes. Nothing is ever unpickled.

Only the parts that a process needs for its shards are read, each once, and no byte of one is used before its hash is
seen to be right.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from fusionray.checkpoint.boxes import find_box
from fusionray.checkpoint.data_files import Need, read_file
from fusionray.checkpoint.index import DTYPES, TensorTable, read_table
from fusionray.checkpoint.info import CheckpointInfo, check_whole, newest_checkpoint, read_info
from fusionray.checkpoint.sharding import local_part
from fusionray.errors import CheckpointDamaged, CheckpointMissing

Value = TypeVar("Value")


def list_tensors(folder: str) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """List names, shapes and types of a checkpoint's tensors; reads no tensor.

    Raises: CheckpointMissing.
    """
    table = read_table(folder, read_info(folder))
    return {name: (torch.Size(entry.shape), DTYPES[entry.dtype]) for name, entry in table.tensors.items()}


def load_tensors(folder: str, prefix: str = "") -> dict[str, Tensor]:
    """Load the tensors whose names begin with a prefix, which is taken off, whole and on the CPU; asks no other rank.

    Raises: CheckpointMissing if there are none, or a byte of them is not the one that was saved.
    """
    info = read_info(folder)
    check_whole(folder, info)
    table = read_table(folder, info)
    wanted = {
        name: torch.empty(entry.shape, dtype=DTYPES[entry.dtype])
        for name, entry in table.tensors.items()
        if name.startswith(prefix)
    }
    if not wanted:
        raise CheckpointMissing(f"{folder}: holds no tensor named {prefix}*; it is of another recipe")
    read_parts(folder, table, wanted)
    return {name.removeprefix(prefix): value for name, value in wanted.items()}


def load_into(
    folder: str,
    targets: Mapping[str, Tensor],
    *,
    optional: Collection[str] = (),
    group: dist.ProcessGroup | None = None,
) -> CheckpointInfo:
    """Load a whole checkpoint in place: plain tensors, DTensors of any mesh, or tensors that this rank alone holds.

    Every rank of the process group calls it (`group`: one of all ranks; default: the default one); alone it does the
    same. Together the targets must be exactly the saved tensors, except that names beginning with one of `optional`
    may lack on either side. A failure is raised on all ranks alike; it may leave targets partly loaded.

    Raises: CheckpointDamaged, CheckpointMissing if it is of other tensors.
    """
    fault: CheckpointMissing | None = None
    try:
        info = read_info(folder)
        check_whole(folder, info)
        table = read_table(folder, info)
        present = {name: target for name, target in targets.items() if name in table.tensors}
        check_fit(folder, table, targets, optional)
    except CheckpointMissing as error:
        fault = error
    seen = gather((word(fault), sorted(targets)), group)
    raise_first(fault for fault, _ in seen)
    check_complete(folder, table, {name for _, names in seen for name in names}, optional)
    try:
        read_parts(folder, table, present)
    except CheckpointMissing as error:
        fault = error
    raise_first(gather(word(fault), group))
    return info


def agree_newest(
    run_folder: str, *, refused: Mapping[str, str] | None = None, group: dist.ProcessGroup | None = None
) -> str | None:
    """Let rank 0 find the newest whole checkpoint for all ranks: one looking a moment later might find another.

    Every rank of the process group calls it (as `load_into`); alone it is `newest_checkpoint`.

    Raises: CheckpointMissing on all ranks alike.
    """
    found: str | None = None
    fault: CheckpointMissing | None = None
    if not grouped() or dist.get_rank() == 0:
        try:
            found = newest_checkpoint(run_folder, refused=refused)
        except CheckpointMissing as error:
            fault = error
    (found, said), *_ = gather((found, word(fault)), group)
    raise_first([said])
    return found


def grouped() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def gather(value: Value, group: dist.ProcessGroup | None) -> list[Value]:
    """Collect a value of every rank, in their order."""
    if not grouped():
        return [value]
    values: list[Value | None] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value, group=group)
    return [each for each in values if each is not None]


def word(fault: CheckpointMissing | None) -> tuple[str, bool]:
    """Return an error as plain data for other ranks: its message, and whether it means damage."""
    return ("", False) if fault is None else (str(fault), isinstance(fault, CheckpointDamaged))


def raise_first(faults: Iterable[tuple[str, bool]]) -> None:
    for said, is_damage in faults:
        if said:
            raise (CheckpointDamaged if is_damage else CheckpointMissing)(said)


def check_fit(folder: str, table: TensorTable, targets: Mapping[str, Tensor], optional: Collection[str]) -> None:
    """Check that every target of this rank was saved, in its shape and type.

    Raises: CheckpointMissing naming the first that was not.
    """
    for name, target in targets.items():
        entry = table.tensors.get(name)
        if entry is None:
            if not name.startswith(tuple(optional)):
                raise misfit(folder, f"{name} is not in it")
        elif list(target.shape) != entry.shape or target.dtype != DTYPES[entry.dtype]:
            wanted = f"{str(target.dtype).removeprefix('torch.')} {list(target.shape)}"
            raise misfit(folder, f"{name} is {entry.dtype} {entry.shape} in it and {wanted} here")


def check_complete(folder: str, table: TensorTable, names: Collection[str], optional: Collection[str]) -> None:
    """Check that every saved tensor has a target on some rank.

    Raises: CheckpointMissing naming the first that has none.
    """
    for name in table.tensors:
        if name not in names and not name.startswith(tuple(optional)):
            raise misfit(folder, f"{name} is in it and not wanted here")


def misfit(folder: str, what: str) -> CheckpointMissing:
    return CheckpointMissing(f"{folder}: does not fit these networks ({what}); use its own configuration")


def read_parts(folder: str, table: TensorTable, targets: Mapping[str, Tensor]) -> None:
    """Fill targets in place with what they need of the data files, each part checked before a byte of it is used.

    Raises: CheckpointMissing naming the first file at fault.
    """
    needs: dict[str, list[Need]] = defaultdict(list)
    with torch.no_grad():
        for name, target in targets.items():
            box, entry = find_box(target), table.tensors[name]
            for part in entry.parts:
                if (common := box.overlap(part.box)) is not None:
                    view = local_part(target).detach()[common.cut(box)]
                    needs[part.file].append(Need(entry, part, common.cut(part.box), view))
        for file, wanted in sorted(needs.items()):
            read_file(folder, file, sorted(wanted, key=lambda need: need.part.start))
