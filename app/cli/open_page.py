"""`leeboard open`: opens the page through a proxy on this machine, which adds the caller's rights."""

import click

from app.cli.asking import Reach, reaching
from app.cli.interrupts import until_interrupted
from app.cli.page_proxy import PageProxy
from app.client.reach_errors import said_by


@click.command("open")
@click.option("--no-browser", is_flag=True, help="Only print the address.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port on 127.0.0.1. [default: a free one]")
@reaching
def open_page(no_browser: bool, port: int, reach: Reach) -> None:  # noqa: FBT001 - a flag of the command line
    """Open the page of Leeboard in a browser, with your rights.

    A proxy on 127.0.0.1 passes requests on, with the credentials of your kubeconfig. Its address has a secret part, so
    that no other user and no other page can use it. Ctrl-C ends it.

    The view has the page: the chart's value view.enabled starts it. Where --service names NAMESPACE/NAME:operations,
    the page is that of NAMESPACE/NAME-view:view.
    """
    # So that a wrong context is one line here, and not an error page.
    reach.page.find_page()
    try:
        listening = PageProxy(reach.page, port=port)
    except OSError as error:
        raise click.ClickException(
            f"127.0.0.1:{port} cannot be used: {said_by(error)}; choose another port with --port, or leave it out for"
            " a free one"
        ) from error
    with listening as proxy:
        click.echo(proxy.url)
        if not no_browser:
            _show(proxy.url)
        click.echo("Ctrl-C ends it.", err=True)
        with until_interrupted():
            proxy.serve()


def _show(url: str) -> None:
    import webbrowser  # noqa: PLC0415 # not needed with --no-browser

    if not webbrowser.open(url):
        click.echo("No browser could be started; open the address by hand.", err=True)
