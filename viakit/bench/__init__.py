"""The goals that ``viakit bench`` checks, each beside its peer."""
