"""Nodes that share a store: membership, leases, and the strategies that divide jobs among them."""
