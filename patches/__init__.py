"""Source patches for SGLang builds that cannot load plugins."""
