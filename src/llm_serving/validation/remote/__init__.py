"""A load from inside the deployment's network: its processes are pods of a Job on EKS, and tasks on ECS.

They meet as the processes of one machine do, by files of one folder (`validation.load.rendezvous`). In each container
`relay` runs one process, and copies those files through objects of the fleet's results bucket:

    this machine: play ---> input-N.json ---> relay (container N) ---> state-N.json, archive-N.tar.gz ---> play
                                              relay (container N) <--- state-M.json

Containers have no rights of their own: each gets presigned URLs of its own objects, which expire within minutes and are
renewed while this machine watches; without it a load ends by itself. Logs would need no bucket, but Kubernetes' rotate
at 10 MiB and a log driver may drop lines, and a long load has more samples than that.
"""
