"""The HTTP API of a running service. Public: paths, parameters and field names change by addition."""

from horae.service.api.app import ApiOptions, make_app

__all__ = ["ApiOptions", "make_app"]
