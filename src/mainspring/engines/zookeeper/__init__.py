"""The ZooKeeper recipe of masters and workers: five nodes, and what its author says he forgot."""
