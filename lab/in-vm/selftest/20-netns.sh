#!/bin/sh
# Two hosts and their link: delay, jitter, loss, rate, one way, cut and restored.
set -eu
. "$LAB/netns.sh"
probe() { on a ping -q -n -c "$1" -i 0.1 -W 1 -s "$2" 10.9.0.2 | tail -n 2 | tr '\n' ' ' || :; }
hosts
echo "# plain:                    $(probe 10 56)"
link delay 50ms
echo "# delay 50ms each way:      $(probe 10 56)"
link_from b delay 10ms
echo "# 50 ms there, 10 ms back:  $(probe 10 56)"
link delay 30ms 10ms loss 20%
said=$(probe 40 56)
echo "# 30 +-10 ms, loss 20 %:    $said"
case $said in *" 0% packet loss"*) exit 1 ;; esac
link delay 5ms rate 256kbit
echo "# 5 ms, 256 kbit/s, 1400 B: $(probe 5 1400)"
cut
said=$(probe 3 56)
echo "# cut:                      $said"
case $said in *" 100% packet loss"*) ;; *) exit 1 ;; esac
restore
said=$(probe 5 56)
echo "# restored:                 $said"
case $said in *" 0% packet loss"*) ;; *) exit 1 ;; esac
