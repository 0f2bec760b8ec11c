"""The bundled bus alone, for services that are started one by one.

It makes the bus's streams and says where it is; the token is in ``<state>/bus/token``.
``python -m services.bus --state DIR [--port PORT]``.
"""

from lineshaft.runtime import premises
from lineshaft.runtime.premises import Premises
from lineshaft.runtime.settings import Settings

PORT_DEFAULT = 4222  # where services look for a bus when nobody tells them otherwise


class BusAlone:
    """The bus of one state folder and nothing else; clients are told its URL by whoever asks."""

    def __init__(self, settings: Settings, port: int) -> None:
        self._premises = Premises(settings, port=port)

    async def start(self) -> None:
        """Start the bus and make its streams."""
        settings = await self._premises.open()
        self._premises.log.info(
            "bus_ready", url=settings.bus_url, token_is_in=str(settings.bus_token_file)
        )

    async def stop(self) -> None:
        """Stop the bus."""
        await self._premises.close()


def main() -> None:
    """Run until SIGTERM or SIGINT. Exit codes: 0, 2 wrong settings, 3 not to be had here."""
    options = premises.parser("services.bus", __doc__)
    options.add_argument("--port", type=int, default=PORT_DEFAULT, help="port on loopback")
    premises.main(options, lambda settings, given: BusAlone(settings, given.port))


if __name__ == "__main__":
    main()
