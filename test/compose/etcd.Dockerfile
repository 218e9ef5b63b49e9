# An etcd of its binary alone, as etcd's own image is, but for berth, which asks for its health in place of etcdctl.
FROM scratch
COPY etcd /usr/local/bin/etcd
COPY berth /berth
