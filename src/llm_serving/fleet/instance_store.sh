#!/bin/bash
set -eu
set -- $(lsblk --nodeps --noheadings --paths --output NAME,MODEL | awk '/Instance Storage/ {print $1}')
if [ $# -eq 0 ] || mountpoint --quiet /mnt/instance-store; then exit 0; fi
disk=$1
if [ $# -gt 1 ]; then
  command -v mdadm >/dev/null || dnf install --assumeyes mdadm
  # As the machine restarts, udev assembles them by a name of its own, and mdadm finds them busy.
  disk=$(lsblk --noheadings --paths --list --output NAME,TYPE $1 | awk '$2 == "raid0" {print $1}')
  if [ -z "$disk" ]; then
    disk=/dev/md/instance-store
    mdadm --assemble $disk "$@" || mdadm --create $disk --run --level=0 --raid-devices=$# "$@"
  fi
fi
blkid $disk || mkfs.xfs $disk
mkdir --parents /mnt/instance-store
mount --options noatime $disk /mnt/instance-store
for folder in /var/lib/docker /var/lib/containerd; do
  mkdir --parents /mnt/instance-store$folder $folder
  mount --bind /mnt/instance-store$folder $folder
done
# It may have started, and opened the folder below the mount.
systemctl try-restart containerd
