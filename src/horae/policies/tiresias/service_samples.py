"""Samples of total service: the GPU-seconds that jobs took in all, as a setting holds them."""

from __future__ import annotations

import numpy as np

from horae.core.arrays import Floats
from horae.policies.settings import BadSetting

#: Column of a CSV file that holds them; `horae simulate --jobs-out` writes one of this name.
COLUMN = "gpu_seconds"


def read_samples(text: str) -> Floats:
    """The numbers of a text such as `100,200,4000`. A file is read before the policy is made, not here."""
    try:
        samples = np.array([float(word) for word in text.split(",")])
    except ValueError:
        raise BadSetting(f"samples={text} are no GPU-seconds: name a CSV file, or use history.") from None
    if not ((samples > 0) & np.isfinite(samples)).all():
        raise BadSetting("samples holds a number that is not above 0 and finite: correct it.")
    return samples
