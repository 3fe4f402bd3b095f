"""What commands print: tables, events, JSON and live screens."""
