"""Nodes of a run on a Ray cluster. `osmosis … --cluster ray` starts this package as a program.

PostgreSQL holds the run; Ray only places processes. A supervisor (`supervisor`) keeps one detached
actor (`node.actor`) on every live machine of the cluster, and each actor owns one `osmosis node`
process (`node.process`). Nothing here decides what a node does.

The code of the actor is sent with it, so a machine of the cluster needs Ray and the `osmosis`
program, and no copy of this package. For that, `node` imports nothing else of ours.
"""
