#!/usr/bin/env bash
# Debian's Slurm for the tests of this folder, where apt-get is there and this user may use it.
# Elsewhere it says so and ends well: those tests are then skipped with the reason.
set -u
packages=(slurmctld slurmd slurm-client munge)
export PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin DEBIAN_FRONTEND=noninteractive

installed() {
  local program
  for program in munged slurmctld slurmd sbatch; do command -v $program >/dev/null || return 1; done
}
leave() {
  echo "Slurm is not installed, its tests will be skipped: $1" >&2
  exit 0
}

installed && exit 0
command -v apt-get >/dev/null || leave "no apt-get here"
if [ "$(id -u)" != 0 ]; then
  sudo -n true 2>/dev/null || leave "neither root nor sudo without a password"
  exec sudo -n bash "$0"
fi

log=$(mktemp)
policy=/usr/sbin/policy-rc.d # forbids a package's installation to start daemons
[ -e $policy ] || {
  printf '#!/bin/sh\nexit 101\n' >$policy && chmod +x $policy
  trap 'rm -f $policy $log' EXIT
}
install() { apt-get install -y --no-install-recommends "${packages[@]}" >"$log" 2>&1; }
install || { apt-get update >"$log" 2>&1 && install; } || { cat "$log" >&2; leave "apt-get failed"; }
