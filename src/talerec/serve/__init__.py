"""The HTTP service, `talerec serve`. Only this folder imports the web libraries (extra `serve`)."""
