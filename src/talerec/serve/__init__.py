"""The service: `talerec serve`. Nothing outside this folder knows the web stack (extra `serve`)."""
