# The script of a virtual machine: names, addresses and the ssh server; then "ready" on the console. init.c runs it.
#   vk_name  the machine's name        vk_cards  NAME=MAC=ADDRESS/BITS of each card, with commas between
set -u
echo "$vk_name" >/proc/sys/kernel/hostname
ip link set lo up
for path in /sys/class/net/*; do
    old=${path##*/}
    for card in $(echo "$vk_cards" | tr , ' '); do
        name=${card%%=*} mac=${card#*=}
        address=${mac#*=} mac=${mac%%=*}
        [ "$(cat "$path/address")" = "$mac" ] || continue
        ip link set "$old" name "$name"
        ip address add "$address" dev "$name"
        ip link set "$name" up
    done
done
mkdir -p /run/sshd
/usr/sbin/sshd -f "$vk_share/sshd_config" -E /dev/console
# sshd returns before it listens (0A: the state of a listening socket), and a connection before that would be refused.
until grep -q '^ *[0-9]*: 00000000:0016 00000000:0000 0A' /proc/net/tcp; do sleep 0.05; done
echo "vm: $vk_name is ready" >/dev/console
while sleep 1000; do :; done
