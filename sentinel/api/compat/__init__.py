"""Routes with the shapes of the GPU Management System."""
