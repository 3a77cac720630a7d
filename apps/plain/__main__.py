"""``python -m viakit.apps.plain [sor ep ...] [--rounds N] [--quick]``: compare kernels with plain C loops."""

import statistics

import click

from viakit.apps import plain


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(plain.MODULES)))
@click.option("--rounds", type=click.IntRange(1, 1000), default=5, show_default=True, help="Turns of each.")
@click.option("--quick", is_flag=True, help="Small sizes, for a test.")
def main(names: tuple[str, ...], rounds: int, quick: bool) -> None:
    """Measure the kernels of applications (default: all) and plain C loops, compiled on this machine, in turns."""
    click.echo(f"{'':48}{'viakit':>10}" + "".join(f"{label:>20}{'ratio':>8}" for label in plain.FLAGS))
    for name in names or plain.MODULES:
        try:
            for one in plain.compare(name, rounds=rounds, quick=quick):
                cells = [
                    f"{statistics.median(one.plain[label]):18.4f} s{one.ratio(label):8.2f}" for label in plain.FLAGS
                ]
                click.echo(f"{one.what:48}{statistics.median(one.kernel):8.4f} s" + "".join(cells))
        except plain.NoCompiler as error:
            raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    main()
