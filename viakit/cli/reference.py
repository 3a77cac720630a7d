"""The commands for the reference of the documentation: an example of each, and its options in groups."""

from __future__ import annotations

import click

__all__ = ["EXAMPLES", "GROUPS", "grouped"]

EXAMPLES = {
    "demo": "viakit demo",
    "sweep": "viakit sweep via-shm tcp --sizes 8,1K,64K --seconds 10 --plot today.png",
    "breakdown": "viakit breakdown tcp udp via-eth --plot parts.svg",
    "barrier": "viakit barrier --ranks 2,4,8 --algorithms rdma,message",
    "collectives": "viakit collectives --operations bcast,allreduce --ranks 4",
    "plot": "viakit plot before.json after.json -o both.html",
    "show": "viakit show today.json --against tcp",
    "compare": "viakit compare before.json after.json",
    "import": "viakit import np.out -o netpipe.json",
    "protocols": "viakit protocols",
    "bench": "viakit bench",
    "calibrate": "viakit calibrate shm --seconds 20 --dry-run",
    "run": "viakit run -n 4 prog.py",
    "app": "viakit app sor -n 2 --size 512",
    "speedup": "viakit speedup ep is --quick --ranks 1,2 --protocols via,tcp",
    "papers": "viakit papers",
    "machines": "viakit machines",
    "trace": "viakit trace --help",
    "lab": "viakit lab",
    "inspect": "viakit inspect",
    "config": "viakit config --cflags",
    "doctor": "viakit doctor",
}

# Options by group, in the order of the page; an option that no group names is in the first.
GROUPS: dict[str, frozenset[str]] = {
    "What": frozenset(),
    "Where": frozenset(
        "hosts mtu rate network machine placement bind python device interface wire burst latency computing offload "
        "tcp_options delay".split()
    ),
    "How": frozenset(
        "seconds seed wait mode level memory buffers sockbuf policy fault reliability form retransmission checksum "
        "perturb offset validate rounds warmup count timeout skew options quick".split()
    ),
    "Output": frozenset(
        "json json_file csv csv_file plot plot_files picture report html quiet live out title force as_json "
        "against label trace markdown".split()
    ),
}


def grouped(command: click.Command) -> dict[str, list[tuple[str, str]]]:
    """Return the options of a command by group, as pairs of names and help; groups without options are left out."""
    context = click.Context(command, info_name=command.name, max_content_width=100)
    found: dict[str, list[tuple[str, str]]] = {name: [] for name in GROUPS}
    for param in command.get_params(context):
        record = param.get_help_record(context)
        if record is None or not isinstance(param, click.Option) or "--help" in param.opts:
            continue
        words = {str(param.name), *(opt.lstrip("-").replace("-", "_") for opt in param.opts)}
        group = next((name for name, members in GROUPS.items() if words & members), next(iter(GROUPS)))
        found[group].append(record)
    return {name: records for name, records in found.items() if records}
