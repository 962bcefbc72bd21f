"""The schedules slice on ZooKeeper.

``mainspring.schedules.unit`` computes the effects of a fire time from the nodes that were read. One multi writes them: the
schedule's new state, the rows of the fire times, their jobs, and the few index nodes that lead to these. There are no locks: a
transaction that conflicts with another reads and computes again.

Rows that other engines lock are *written* here, with the version that was read (``Transaction.touch``). So of two transactions
that lock the same schedule only one commits. No version guards the children of a node. Rows found by a list are therefore
either protected by the write of a schedule that was locked before, or read again by their path. A family, which is schedules
related by parents, is locked by its first member. The end of a run without effects, the most frequent case, locks nothing: the
transaction that ends a run writes its row.

A job that ends is settled in the multi of its consequences (``ending``), each job by itself, however many end in one group.
"""
