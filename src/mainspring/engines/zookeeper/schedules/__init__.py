"""The schedules slice on ZooKeeper.

What a fire time leads to is decided by ``mainspring.schedules.unit`` on what was read, and written in one multi: the schedule's
new state, the rows of the fire times, their jobs, and the few nodes by which all that is found again. There are no locks: who was
overtaken reads and decides anew.

What is locked elsewhere is *written* here, with the version that was read (``Transaction.touch``), so that of two transactions
that have locked the same schedule only one can be right. The children of a node are guarded by nothing; what is found by listing
is what nobody can change without writing a schedule that was locked before, or is read again by its path. A family, which is
schedules that are related by parents, is locked by its first member; the end of a run that nothing follows from, which is most,
locks nothing: whoever ends a run writes its row.

A job that ends is settled in the multi of what follows (``ending``); each job by itself, however many end in one group.
"""
