# SPDX-License-Identifier: Apache-2.0
"""Which data-parallel rank and replica this process is: given, from torch.distributed, or from the launcher."""
import os
import sys
from typing import NamedTuple

from ._errors import SpecError

# (rank, world) variables of launchers, in the order in which they are believed.
LAUNCHERS = (
    ("RANK", "WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
)


class Place(NamedTuple):
    """Where a process stands; source is where that is known from, "" for a process alone."""
    rank: int
    world: int
    replica: int
    replicas: int
    source: str

    def __str__(self):
        replica = f" replica {self.replica}/{self.replicas}" if self.replicas > 1 else ""
        return f"rank {self.rank}/{self.world}{replica} from {self.source}"


def distributed():
    """torch.distributed if it is initialised, else None. Does not import torch."""
    dist = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_available() and dist.is_initialized():
        return dist
    return None


def _number(name, environ):
    try:
        value = int(environ[name])
    except ValueError:
        raise SpecError(f"{name}={environ[name]!r} is not a number") from None
    if value < 0:
        raise SpecError(f"{name}={value} is negative")
    return value


def _all_processes(environ):
    """(rank, world, source) over all processes of the job."""
    dist = distributed()
    if dist is not None:
        return dist.get_rank(), dist.get_world_size(), "torch.distributed"
    for rank, world in LAUNCHERS:
        if environ.get(rank) and environ.get(world):
            return _number(rank, environ), _number(world, environ), rank
    return 0, 1, ""


def _from_mesh(mesh):
    """A DeviceMesh of one dimension, or (mesh, "name of the data-parallel dimension")."""
    name = None
    if isinstance(mesh, tuple):
        mesh, name = mesh
    names = list(mesh.mesh_dim_names or ())
    if name is None and mesh.ndim == 1:
        rank, world = mesh.get_local_rank(), mesh.size()
        total = distributed().get_world_size() if distributed() else world
        if total != world:
            raise SpecError(f"mesh: its {world} processes are not all {total}; give mesh=(the whole mesh, "
                            "\"name of the data-parallel dimension\"), so that replicas are known")
        return Place(rank, world, 0, 1, "the mesh")
    if name not in names:
        raise SpecError(f"mesh: no dimension {name!r}; it has {', '.join(names) or 'no names'}: give mesh=(mesh, name)")
    at, where, sizes = names.index(name), mesh.get_coordinate(), mesh.mesh.shape
    replica = replicas = 0
    for i, size in enumerate(sizes):
        if i != at:
            replica, replicas = replica * size + where[i], (replicas or 1) * size
    return Place(where[at], sizes[at], replica, replicas or 1, f"mesh dimension {name}")


def find(rank=None, world_size=None, replica=None, replicas=None, mesh=None, environ=os.environ):
    """The Place of this process. What is given wins; the rest is found."""
    if mesh is not None:
        if (rank, world_size, replica, replicas) != (None,) * 4:
            raise SpecError("mesh: it says rank, world_size, replica and replicas; give either")
        return _from_mesh(mesh)
    if (rank is None) != (world_size is None):
        raise SpecError(f"rank {rank} and world_size {world_size}: give both or neither")
    if rank is not None:
        return Place(int(rank), int(world_size), int(replica or 0), int(replicas or 1), "")
    process, processes, source = _all_processes(environ)
    replicas = int(replicas or 1)
    if replicas < 1 or processes % replicas:
        raise SpecError(f"replicas {replicas}: {processes} processes ({source or 'this one alone'}) "
                        "are not a multiple of it")
    # Replicas of a rank are neighbours, as tensor-parallel groups are.
    found = process % replicas if replica is None else int(replica)
    return Place(process // replicas, processes // replicas, found, replicas, source)
