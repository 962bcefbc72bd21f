"""The store on ZooKeeper, after the recipe of a master that assigns tasks to workers."""
