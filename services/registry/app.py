"""The registry as a service: ports, decider, read models, requests, HTTP API."""

from lineshaft.runtime import subscribers
from lineshaft.runtime.service import Service
from lineshaft.runtime.settings import Settings, SettingsError
from lineshaft.runtime.wiring import Ports, open_ports
from services.registry import handlers
from services.registry.api import make_app
from services.registry.catalogue import Catalogue
from services.registry.domain.decider import RegistryDecider
from services.registry.projector import RegistryProjector
from services.registry.server import HttpServer, is_loopback

NAME = "registry"


def build(settings: Settings, ports: Ports | None = None) -> Service:
    """Make the service; it starts nothing. After its start ``addresses["http"]`` is the URL.

    Raises ``SettingsError`` when the API would be open to other machines without a token.
    """
    token = settings.token()
    if token is None and not is_loopback(settings.http_host):
        fault = f"http_host: {settings.http_host} is reachable from elsewhere and needs a bus_token"
        raise SettingsError([fault])
    service = Service(
        NAME,
        settings,
        ports or open_ports(settings, NAME),
        decider=RegistryDecider(),
        projector=RegistryProjector(),
        driver=subscribers.bind,
    )
    catalogue = Catalogue(service.views, service.objects)
    handlers.register(service, catalogue)
    app = make_app(catalogue, service.objects, token)
    server = HttpServer(app, settings.http_host, settings.http_port)

    async def listen() -> None:
        service.addresses["http"] = await server.start()

    service.on_start(listen)
    service.on_stop(server.stop)
    return service
