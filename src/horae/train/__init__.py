"""What a training script imports: light, the standard library only."""

from horae.train.skew import Profile, profile, skew

__all__ = ["Profile", "profile", "skew"]
