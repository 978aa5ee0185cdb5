"""The exchange between slot processes over sockets: Unix sockets on one host, TCP across hosts."""

from tidegate.drivers.exchange.sockets import SocketExchange

__all__ = ["SocketExchange"]
