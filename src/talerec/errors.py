"""The one error that people cause and can mend: a single line, in their words."""


class TalerecError(ValueError):
    """Bad input or a request that cannot be met; the message names the thing and what to do."""
