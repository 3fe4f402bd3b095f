"""Routes with the formats of the GPU Management System."""
