"""The real world: blobs, devices and the engine that carries out the controller's commands."""
