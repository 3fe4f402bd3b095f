"""What is installed: packages, the build of torch, and files that come with Sentinel."""
