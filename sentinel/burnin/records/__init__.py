"""The record of a burn-in: what a run writes into its folder, and what that says of each GPU."""
