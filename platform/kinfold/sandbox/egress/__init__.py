"""What a sandbox's programs may reach: a proxy on the host, spoken to over the channel. See `egress.Egress`."""
