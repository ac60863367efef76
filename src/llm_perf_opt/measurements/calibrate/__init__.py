"""Small measurements that tell how fast a machine is at each kind of work."""
