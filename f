uid=0(root) gid=0(root) groups=0(root)
