"""The HTTP API: what people, jobs and programs ask of a running service."""

from horae.service.api.app import make_app

__all__ = ["make_app"]
