#!/bin/sh
# Two hosts, a and b, in one guest: network namespaces joined by a veth pair, with netem on both ends.
# Source it in a shell test, or run it as a command from any other program:
#
#   . "$LAB/netns.sh"            "$LAB/netns.sh" hosts delay 20ms
#   hosts delay 20ms 5ms loss 1%     create them; optional words are for netem
#   on a outboard share ...          run a command in a host; a is 10.9.0.1, b is 10.9.0.2
#   link delay 50ms                  set the properties of the link, both ways (no words: none)
#   link_from a rate 256kbit         set them one way
#   cut; cut a                       drop everything; drop everything that a sends
#   restore                          restore the earlier properties
#   hosts_end                        remove them

lab_state=/run/outboard-lab

hosts() {
  hosts_end
  mkdir -p "$lab_state"
  for host in a b; do
    ip netns add $host || return
    ip -n $host link set lo up || return
  done
  ip -n a link add wan-a type veth peer name wan-b netns b || return
  for host in a b; do
    address=10.9.0.1/24; [ $host = b ] && address=10.9.0.2/24
    ip -n $host addr add $address dev wan-$host || return
    # A program may connect as soon as this returns: a veth pair needs no negotiation.
    ip -n $host link set wan-$host up || return
    tc -n $host qdisc add dev wan-$host root netem || return
  done
  link "$@"
}

on() { host=$1; shift; ip netns exec "$host" "$@"; }

link() { link_from a "$@" && link_from b "$@"; }

link_from() {
  host=$1; shift
  echo "$*" >"$lab_state/$host"
  # Many packets may be in flight on a long link.
  tc -n "$host" qdisc change dev "wan-$host" root netem limit 10000 "$@"
}

cut() {
  for host in ${1:-a b}; do
    tc -n "$host" qdisc change dev "wan-$host" root netem limit 10000 loss 100% || return
  done
}

restore() {
  for host in a b; do
    read -r words <"$lab_state/$host"
    # Split the words again as they were given.
    link_from $host $words || return
  done
}

hosts_end() {
  for host in a b; do
    [ ! -e /run/netns/$host ] || ip netns delete $host
  done
  rm -rf "$lab_state"
}

case ${0##*/} in netns.sh) "$@" ;; esac
